"""The choice among measured strategies."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import pytest

from darkroom.contract.quality import QUALITIES, RETIRED, STRATEGIES, read_choice
from darkroom.engine.tuning.choose import TIME_OVER, Measured, Names, choose
from darkroom.engine.tuning.outcome import Choice, Outcome, read_outcome
from darkroom.engine.tuning.quality import Quality, read_quality


@dataclass(frozen=True)
class Item:
    name: str
    quality: Quality
    conflicts: frozenset[str] = frozenset()
    is_certain: bool = False
    certain_error: float = 0.0
    is_graded: bool = False


OF_STRATEGIES = (Quality.EXACT, Quality.SAME, Quality.DRAFT)  # `close` is for batches with other runs
A, B, C = (Item(STRATEGIES[index], quality) for index, quality in enumerate(OF_STRATEGIES))


def measuring(figures: dict[str, Measured], seen: list[tuple[Names, Names]] | None = None):  # type: ignore[no-untyped-def]
    def measure(names: Names, before: Names) -> Measured:
        if seen is not None:
            seen.append((names, before))
        return figures[names[-1]]

    return measure


def test_strategies_of_a_closer_quality_are_the_base_of_the_next() -> None:
    seen: list[tuple[Names, Names]] = []
    fast = {item.name: Measured(2.0, 1.0, 0.0) for item in (A, B, C)}
    figures, choices = choose((C, B, A), measuring(fast, seen), {})
    assert [choices[quality].names for quality in Quality] == [
        (A.name,),
        (A.name, B.name),
        (A.name, B.name),
        (A.name, B.name, C.name),
    ]
    assert seen[2] == ((A.name, B.name), (A.name,))
    assert all(figure.is_chosen for figure in figures)


@pytest.mark.parametrize(
    ("item", "found", "reason"),
    [
        (A, Measured(2.0, 1.0, 1e-9), "other bits"),
        (B, Measured(2.0, 1.0, 0.002), "more than 0.001"),
        (C, Measured(2.0, 1.0, math.nan), "more than 0.25"),
        (A, Measured(2.0, 1.0, 1e-3, rounding_error=0.01), "other bits"),
        (B, Measured(2.0, 1.0, 9e-3, rounding_error=4e-3), "more than 0.008"),
        (B, Measured(1.02, 1.0, 0.0), "less than 1.03"),
        (B, Measured(failure="the model has patches"), "the model has patches"),
    ],
)
def test_what_differs_or_is_not_faster_is_not_chosen(item: Item, found: Measured, reason: str) -> None:
    (figure,), choices = choose((item,), measuring({item.name: found}), {})
    assert not figure.is_chosen and reason in figure.reason
    assert all(choice.names == () for choice in choices.values())


def test_a_gain_that_does_not_come_again_was_other_load() -> None:
    found = [Measured(2.0, 1.0), Measured(1.0, 1.0)]
    (figure,), choices = choose((B,), lambda names, before: found.pop(0), {})
    assert not figure.is_chosen and "1.00 x" in figure.reason
    assert choices[Quality.SAME].names == ()


def test_what_fails_the_second_time_is_not_chosen() -> None:
    found = [Measured(2.0, 1.0), Measured(failure="RuntimeError: no kernel")]
    (figure,), choices = choose((B,), lambda names, before: found.pop(0), {})
    assert (figure.is_chosen, figure.reason) == (False, "RuntimeError: no kernel")
    assert choices[Quality.SAME].names == ()
    found = [Measured(2.0, 1.0), Measured(failure=TIME_OVER)]
    (figure,), _ = choose((B,), lambda names, before: found.pop(0), {})
    assert figure.is_chosen, "there was no time to measure again"


@pytest.mark.parametrize(("error", "quality"), [(1e-4, Quality.SAME), (1e-2, Quality.DRAFT), (0.5, None)])
def test_the_quality_of_a_graded_strategy_is_that_of_its_error(error: float, quality: Quality | None) -> None:
    graded = Item("fp16_accumulation", Quality.SAME, is_graded=True)
    seen: list[tuple[Names, Names]] = []
    fast = {graded.name: Measured(2.0, 1.0, error), B.name: Measured(2.0, 1.0)}
    figures, choices = choose((graded, B), measuring(fast, seen), {})
    assert len(figures) == 2
    for item in Quality:
        assert (graded.name in choices[item].names) == (quality is not None and item.allows(quality))
    if quality is Quality.DRAFT:
        assert seen[-1] == ((B.name, graded.name), (B.name,)), "on top of what is closer"


@pytest.mark.parametrize("is_faster", [True, False])
def test_of_strategies_that_do_not_go_together_the_faster_is_chosen(is_faster: bool) -> None:
    """A strategy that opposes several is measured against all of them: compiled blocks against all fused layers."""
    first, second = (Item(name, Quality.SAME) for name in (B.name, "fused_geglu"))
    opposed = Item("compiled_blocks", Quality.SAME, frozenset({first.name, second.name}))
    fast = {item.name: Measured(2.0, 1.0) for item in (A, first, second)}
    seen: list[tuple[Names, Names]] = []
    figures, choices = choose(
        (A, first, second, opposed),
        measuring({**fast, opposed.name: Measured(3.0 if is_faster else 1.0, 2.0)}, seen),
        {},
    )
    assert seen[-1] == ((A.name, opposed.name), (A.name, first.name, second.name))
    assert choices[Quality.EXACT].names == (A.name,)
    kept = (A.name, opposed.name) if is_faster else (A.name, first.name, second.name)
    assert choices[Quality.SAME].names == kept and figures[-1].is_chosen is is_faster
    assert f"in the place of {first.name}, {second.name}" in figures[-1].reason


def test_what_does_not_go_with_a_certain_one_is_not_measured() -> None:
    opposed = Item(B.name, Quality.SAME, frozenset({A.name}))
    (_, figure), _ = choose((replace(A, is_certain=True), opposed), measuring({}), {})
    assert figure.reason == f"does not go with {A.name}, which was chosen"


def test_decoding_does_not_count_as_steps() -> None:
    figures = {A.name: Measured(2.0, 1.0), B.name: Measured(50.0, 10.0, 1e-4, is_of_steps=False)}
    _, choices = choose((A, B), measuring(figures), {})
    assert choices[Quality.SAME].names == (A.name, B.name)
    assert (choices[Quality.SAME].it_per_s, choices[Quality.SAME].error) == (2.0, 0.0)


def test_an_outcome_survives_its_json_form() -> None:
    figures, choices = choose((A, B), measuring({A.name: Measured(2.0, 1.0), B.name: Measured(1.0, 1.0)}), {})
    outcome = Outcome({"device": "x"}, "UnetModel", {"steps": 4}, 1.5, tuple(figures), choices, 2.0, None, "f", "Vae:v")
    assert read_outcome(outcome.as_json()) == outcome


@pytest.mark.parametrize(
    "change", [{"version": 1}, {"choices": {"exact": {"names": ["warp"]}}}, {"figures": 3}, {"choices": {"best": {}}}]
)
def test_what_is_no_outcome_is_refused(change: dict[str, object]) -> None:
    body = Outcome({}, "UnetModel", {}, None, (), {}).as_json()
    with pytest.raises(ValueError):
        read_outcome({**body, **change})


def test_strategies_that_are_no_more_are_left_out_of_an_outcome(caplog: pytest.LogCaptureFixture) -> None:
    body = Outcome({}, "UnetModel", {}, None, (), {}).as_json()
    names = ["prompt_cache", *RETIRED, "fused_qkv"]
    known = read_outcome({**body, "choices": {"same": {"names": names, "it_per_s": 1.0, "error": 0.0}}})
    assert known.choice(Quality.SAME).names == ("prompt_cache", "fused_qkv") and not caplog.records
    later = read_outcome({**body, "choices": {"same": {"names": ["warp"], "it_per_s": 1.0, "error": 0.0}}})
    assert later.choice(Quality.SAME).names == () and "names=warp" in caplog.text


def test_a_quality_allows_what_is_closer() -> None:
    assert Quality.DRAFT.allows(Quality.EXACT) and not Quality.EXACT.allows(Quality.SAME)
    assert read_quality(None) is Quality.SAME
    with pytest.raises(ValueError, match="expected one of exact, same, close, draft"):
        read_quality("best")
    assert tuple(Quality) == QUALITIES


def test_the_setting_names_strategies() -> None:
    assert read_choice("auto") is None and read_choice("off") == ()
    assert read_choice("prompt_cache, fused_qkv") == ("prompt_cache", "fused_qkv")
    assert read_choice(",".join(("prompt_cache", *RETIRED))) == ("prompt_cache",) and read_choice(RETIRED[0]) == ()
    with pytest.raises(ValueError, match="got 'warp', expected auto, off or a comma list of"):
        read_choice("prompt_cache,warp")


def test_a_certain_strategy_is_chosen_unmeasured_unless_it_is_excluded() -> None:
    certain = Item(A.name, Quality.EXACT, is_certain=True)
    figures, choices = choose((certain, B), measuring({B.name: Measured(2.0, 1.0)}), {})
    assert figures[0].is_chosen and figures[0].it_per_s is None
    assert choices[Quality.EXACT].names == (A.name,) and choices[Quality.SAME].names == (A.name, B.name)
    (figure,), choices = choose((certain,), measuring({}), {A.name: "not named by the setting"})
    assert not figure.is_chosen and choices[Quality.EXACT].names == ()


def test_an_outcome_from_before_a_quality_gives_it_the_choice_of_the_next_closer_one() -> None:
    choices = {Quality.EXACT: Choice(), Quality.SAME: Choice(("a",)), Quality.DRAFT: Choice(("b",))}
    outcome = Outcome({}, "UnetModel", {}, None, (), choices)
    assert outcome.choice(Quality.CLOSE).names == ("a",) and outcome.choice(Quality.DRAFT).names == ("b",)
