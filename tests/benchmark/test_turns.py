"""This version beside the last release: which ratio is worse, what is noise, and how the order changes."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from benchmark import turns
from benchmark.turns import HERE, RELEASE, Figure, checked_out, exit_code, in_turns, judged

TREES = {RELEASE: Path("release"), HERE: Path("here")}


def figure(release: list[float], here: list[float], *, is_rate: bool = False) -> dict[str, Any]:
    return judged(Figure("a step", "s", is_rate, {RELEASE: release, HERE: here}))


def test_four_per_cent_more_are_fine_and_eight_are_worse() -> None:
    assert figure([1.0, 1.0, 1.0], [1.04, 1.04, 1.04])["verdict"] == "fine"
    found = figure([1.0, 1.0, 1.0], [1.08, 1.08, 1.08])
    assert (found["verdict"], found["times_worse"], found["noise"]) == ("worse", 1.08, 0.0)


def test_of_a_rate_less_is_worse() -> None:
    assert figure([100.0] * 3, [90.0] * 3, is_rate=True)["verdict"] == "worse"
    assert figure([100.0] * 3, [120.0] * 3, is_rate=True)["verdict"] == "fine"


def test_what_the_noise_may_explain_is_unclear() -> None:
    found = figure([1.0] * 5, [0.9, 1.0, 1.1, 1.2, 1.3])
    assert found["verdict"] == "unclear" and found["noise"] == pytest.approx(0.1)


def test_two_rounds_prove_nothing() -> None:
    assert figure([1.0, 1.0], [2.0, 2.0])["verdict"] == "unclear"


def test_load_that_meets_both_versions_of_a_round_does_not_count() -> None:
    assert figure([1.0, 5.0, 1.0], [1.0, 5.0, 1.0])["times_worse"] == 1.0


def test_the_first_round_does_not_count_and_the_order_changes() -> None:
    order: list[str] = []

    def measure(name: str, tree: Path) -> Mapping[str, float]:
        order.append(name)
        return {"a": float(len(order))}

    found = in_turns(TREES, 2, measure)
    assert order == [HERE, RELEASE, RELEASE, HERE, HERE, RELEASE]
    assert found == {"a": {RELEASE: [3.0, 6.0], HERE: [4.0, 5.0]}}


def test_the_exit_code_says_worse_first_and_what_is_missing_then() -> None:
    fine, worse = figure([1.0] * 3, [1.0] * 3), figure([1.0] * 3, [2.0] * 3)
    assert exit_code([fine], {}) == 0
    assert exit_code([fine, worse], {"steps": "no model"}) == 1
    assert exit_code([fine], {"steps": "no model"}) == exit_code([], {}) == 2


def test_a_part_that_fails_is_named_and_stops_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(trees: Mapping[str, Path], size: turns.Size) -> Any:
        raise RuntimeError("the engine did not start")

    def measures(trees: Mapping[str, Path], size: turns.Size) -> Any:
        yield Figure("a step", "s", values={RELEASE: [1.0], HERE: [1.0]})

    monkeypatch.setattr(turns, "MEASURED", {"start": fails, "steps": measures})
    figures, failed = turns.compare(TREES, ("start", "steps"), turns.Size())
    assert failed == {"start": "the engine did not start"}
    assert [found["verdict"] for found in figures] == ["fine"]


def test_a_release_is_cloned_at_its_commit() -> None:
    with checked_out("HEAD") as (tree, commit):
        assert (tree / "pyproject.toml").is_file()
        done = subprocess.run(["git", "-C", str(tree), "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == commit
    assert not tree.exists()


def test_an_unknown_release_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert turns.main(["--release", "v99.0.0"]) == 2
    assert "v99.0.0: no commit of this repository" in capsys.readouterr().err
