"""All benchmarks in one call: what each says is put beside its goal, and what fails is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmark import all as everything
from benchmark.goals import GOALS, compare, table
from benchmark.tuning import table as tuning_table

STORED = Path(everything.__file__).parent / "results"
STARTED = {"ours": {"first_answer_seconds": 0.25, "first_prompt_seconds": 2.0}}


def test_figures_stand_beside_their_goals() -> None:
    first, second = compare({"engine_start": STARTED})
    assert (first["value"], first["goal"], first["is_met"]) == (0.25, "≤ 0.5", True)
    assert (second["value"], second["is_met"]) == (2.0, False)
    text = table([first, second], {"gpu": "took more than 470 s"})
    assert "| engine, from start to the first answer | 0.25 s | ≤ 0.5 | yes | `engine_start` |" in text
    assert "`gpu` did not run: took more than 470 s." in text


def test_a_report_without_the_figure_leaves_it_open() -> None:
    assert all(entry["value"] is None and entry["is_met"] is None for entry in compare({"engine_start": {}}))


@pytest.mark.parametrize("part", sorted({goal.part for goal in GOALS} - {"gpu", "tuning"}))
def test_the_goals_find_their_figures_in_the_stored_reports(part: str) -> None:
    report = json.loads((STORED / f"{part}.json").read_text(encoding="utf-8"))
    found = [entry["value"] is not None for entry in compare({part: report})]
    assert any(found) if part == "comfyui_speed" else all(found)  # families and precisions of it are chosen


def test_the_gain_of_tuning_is_that_of_a_quality() -> None:
    names = {"exact": ["a", "certain"], "same": [], "draft": ["a", "certain", "b"]}
    rates = {"a": (3.0, 2.0), "b": (4.0, 2.5), "certain": (None, None), "refused": (1.0, 2.0)}
    figures = [
        {"name": name, "quality": "exact", "it_per_s": after, "before_it_per_s": before, "error": 0.0,
         "is_chosen": True, "reason": ""}
        for name, (after, before) in rates.items()
    ]  # fmt: skip
    outcome = {"choices": {name: {"names": chosen} for name, chosen in names.items()}, "figures": figures}
    assert [entry["value"] for entry in compare({"tuning": {"outcome": outcome}})] == [1.5, 1.0, pytest.approx(2.4)]
    assert tuning_table(outcome).startswith("| Strategy |")


def test_a_part_that_fails_is_named_and_stops_no_other(tmp_path: Path) -> None:
    parts = [everything.Part("nobody"), everything.Part("tuning", (), most_seconds=-1.0)]
    report = everything.run_all(parts, 60.0)
    assert "No module named benchmark.nobody" in report["failed"]["nobody"]
    assert report["failed"]["tuning"] == "no time was left"


def test_parts_fit_the_machine() -> None:
    def names(**given: object) -> list[str]:
        wanted = {"has_gpu": False, "is_quick": True, "comfyui": (), **given}
        return [part.name for part in everything.parts(**wanted)]  # type: ignore[arg-type]

    assert "gpu" not in names() and "comfyui_speed" not in names()
    assert "gpu" in names(has_gpu=True)
    assert "comfyui_speed" in names(comfyui=("--comfyui", "x"))
