"""Tuning of an engine: measured, then used by the prompts that allow it, and reported."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from darkroom.engine import Engine, EngineSettings, RunRequest
from darkroom.engine.events import Event, TuningUsed
from tests.contract.graph.declared import node
from tests.engine.tuning.outcomes import outcome_of, use_everywhere

SIZE = {"width_px": 64, "height_px": 64, "num_steps": 2, "settle_seconds": 0, "turns_seconds": 0}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    names = ("prompt_cache", "fused_qkv", "threads")
    with Engine(EngineSettings(base_directory=tmp_path_factory.mktemp("base"), cpu=True, tuning=names)) as made:
        yield made
        made.tuner.check_integrity()


def latent_prompt(seed: int = 1) -> dict[str, Any]:
    text = {"clip": ["1", 1], "text": "a lighthouse"}
    return {
        "1": node("DarkroomRandomCheckpoint", family="sd15", scale="small"),
        "2": node("CLIPTextEncode", **text),
        "3": node("EmptyLatentImage", width=64, height=64, batch_size=1),
        "4": node(
            "KSampler", model=["1", 0], positive=["2", 0], negative=["2", 0], latent_image=["3", 0], seed=seed, steps=2,
            cfg=5.0, sampler_name="euler", scheduler="normal", denoise=1.0,
        ),
        "5": node("SaveLatent", samples=["4", 0], filename_prefix="tuned"),
    }  # fmt: skip


def run(engine: Engine, quality: str | None, seed: int = 1) -> tuple[list[Event], bytes]:
    checked = engine.check(latent_prompt(seed))
    seen: list[Event] = []
    extra = {} if quality is None else {"quality": quality}
    result = engine.submit(RunRequest("p", checked.prompt, checked.outputs, extra), seen.append).result()
    assert result.status == "success"
    shown = result.outputs["5"]["latents"][0]
    return seen, (engine.settings.output_path / shown["subfolder"] / shown["filename"]).read_bytes()


def usage(events: list[Event]) -> list[TuningUsed]:
    return [event for event in events if isinstance(event, TuningUsed)]


def test_measures_every_strategy_and_says_why_each_was_chosen_or_not(engine: Engine) -> None:
    found = engine.tuning.measure({"family": "sd15", "scale": "small", **SIZE}).result()
    figures = {figure["name"]: figure for figure in found["figures"]}
    assert found["network"] == "UnetModel" and found["plain_it_per_s"] > 0
    assert figures["prompt_cache"]["error"] == 0.0 and figures["prompt_cache"]["it_per_s"] > 0
    assert figures["cuda_graph"]["reason"] == "not named by the setting"
    assert "full size" in figures["threads"]["reason"]
    assert all(figure["reason"] for figure in figures.values())
    assert engine.tuner.report()["outcomes"] == [found]


def test_a_prompt_uses_what_its_quality_allows_and_the_engine_reports_it(engine: Engine) -> None:
    use_everywhere(engine, {"exact": ["prompt_cache"], "same": ["prompt_cache", "fused_qkv"]}, 1e-4)
    exact, first = run(engine, "exact")
    same, second = run(engine, "same")
    (of_exact,), (of_same,) = usage(exact), usage(same)
    assert (of_exact.quality, of_exact.strategies) == ("exact", ("prompt_cache",))
    assert (of_same.strategies, of_same.error) == (("prompt_cache", "fused_qkv"), 1e-4)
    use_everywhere(engine, {})
    engine.free(unload_models=False, free_memory=True)
    plain, third = run(engine, "exact")
    assert usage(plain)[0].strategies == ()
    assert len(first) == len(second) and first == third


def test_what_does_not_fit_into_the_time_for_tuning_is_not_used(engine: Engine) -> None:
    found = engine.tuning.measure({"family": "sd15", "scale": "small", **SIZE, "budget_seconds": 0}).result()
    figure = next(figure for figure in found["figures"] if figure["name"] == "prompt_cache")
    assert figure["reason"] == "not measured: the time for tuning was over"
    assert all(not choice["names"] for choice in found["choices"].values())


def test_a_prompt_without_a_quality_gets_no_message_beyond_comfyuis(engine: Engine) -> None:
    assert not usage(run(engine, None)[0])


def test_results_of_one_quality_are_none_of_another(engine: Engine) -> None:
    use_everywhere(engine, {"exact": ["prompt_cache"], "draft": ["fused_qkv"]})
    run(engine, "exact")
    (again,), (other,) = usage(run(engine, "exact")[0]), usage(run(engine, "draft")[0])
    assert again.strategies == ()  # answered from the cache
    assert other.strategies == ("fused_qkv",)


def test_a_strategy_that_the_operator_does_not_allow_is_not_used(engine: Engine) -> None:
    use_everywhere(engine, {"draft": ["step_cache", "fused_qkv"]})
    (found,) = usage(run(engine, "draft", seed=2)[0])
    assert found.strategies == ("fused_qkv",)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"width_px": 0}, "width_px: out of range; got 0, expected 16 to 4096"),
        ({"num_steps": "2"}, "num_steps: out of range"),
        ({"depth": 1}, "depth: unknown field"),
        ({"checkpoint": 3}, "checkpoint: no text"),
        ({"family": "nobody", **SIZE}, "family: unknown family or scale"),
    ],
)
def test_a_request_that_cannot_be_measured_names_its_field(body: dict[str, Any], message: str, engine: Engine) -> None:
    with pytest.raises(ValueError, match=message):
        engine.tuning.measure(body).result()


def test_an_unknown_quality_is_refused_before_anything_runs(engine: Engine) -> None:
    checked = engine.check(latent_prompt())
    with pytest.raises(ValueError, match="quality: unknown"):
        engine.submit(RunRequest("p", checked.prompt, checked.outputs, {"quality": "best"}), print)


def test_drafts_may_skip_steps_and_merge_tokens(tmp_path: Path) -> None:
    with Engine(EngineSettings(base_directory=tmp_path, cpu=True)) as engine:
        use_everywhere(engine, {"draft": ["step_cache", "token_merging"]})
        (found,) = usage(run(engine, "draft")[0])
        assert found.strategies == ("step_cache", "token_merging")


def test_the_measurement_chooses_how_many_runs_are_in_progress(tmp_path: Path) -> None:
    settings = EngineSettings(
        base_directory=tmp_path, cpu=True, tuning=("prompt_cache",), max_concurrent_runs=4, chooses_runs=True
    )
    with Engine(settings) as engine:
        assert engine.tuning.runs_at_once == 4
        measured = engine.tuning.measure(SIZE).result()
        assert measured["concurrent_runs"] in (1, 2, 3, 4) and engine.tuning.runs_at_once == measured["concurrent_runs"]
        engine.tuning.adopt(outcome_of({}) | {"concurrent_runs": 3})
        assert engine.tuning.runs_at_once == 3
        engine.tuning.adopt(outcome_of({}) | {"concurrent_runs": 16})
        assert engine.tuning.runs_at_once == 4
        with pytest.raises(ValueError, match="concurrent_runs: not measured"):
            engine.tuning.adopt(outcome_of({}))


def test_a_number_of_runs_that_was_set_stays(engine: Engine) -> None:
    engine.tuning.adopt(outcome_of({}) | {"concurrent_runs": 3})
    assert engine.tuning.runs_at_once == 1
