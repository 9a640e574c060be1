"""Figures of a benchmark run: steps, first step, cached or not, files to remove."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from darkroom.worker.engines.client.files import LocalFolders
from darkroom.worker.qualification.runs import StepWatch, remove_outputs

PROMPT = {"1": {"class_type": "Load"}, "2": {"class_type": "KSampler"}, "3": {"class_type": "VAEDecode"}}


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def heard(*messages: tuple[float, str, dict[str, Any]]) -> StepWatch:
    clock = Clock()
    watch = StepWatch(PROMPT, clock)
    for seconds, kind, data in messages:
        clock.now = seconds
        watch.on_message(kind, data)
    return watch


def test_the_samplers_steps_and_their_time_are_taken() -> None:
    timing = heard(
        (0.1, "execution_start", {}),
        (0.1, "executing", {"node": "1"}),
        (1.0, "executing", {"node": "2"}),
        (1.5, "progress", {"node": "2", "value": 1, "max": 4}),
        (3.0, "progress", {"node": "2", "value": 4, "max": 4}),
        (3.0, "executing", {"node": "3"}),
        (3.2, "progress", {"node": "3", "value": 9, "max": 9}),
        (4.0, "executing", {"node": None}),
    ).timing()
    assert (timing.sampling_seconds, timing.num_steps, timing.its_per_second) == (2.0, 4, 2.0)
    assert (timing.first_step_seconds, timing.total_seconds, timing.num_executed) == (1.5, 4.0, 3)
    assert not timing.is_from_cache


def test_a_run_of_which_nothing_was_heard_has_only_its_length() -> None:
    timing = heard((2.0, "status", {})).timing()
    assert (timing.total_seconds, timing.its_per_second, timing.is_from_cache) == (2.0, None, False)


def test_a_run_from_the_cache_is_known_as_such() -> None:
    assert heard((0.1, "execution_start", {}), (0.2, "executing", {"node": None})).timing().is_from_cache


def test_what_a_run_saved_is_removed_and_nothing_else(tmp_path: Path) -> None:
    folders = LocalFolders(tmp_path / "input", tmp_path / "output", tmp_path / "temp")
    mine, other, outside = tmp_path / "output/sub/mine.png", tmp_path / "output/other.png", tmp_path / "outside.png"
    given = tmp_path / "input" / "given.png"
    for path in (mine, other, outside, given):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    items = [
        {"filename": "mine.png", "subfolder": "sub", "type": "output"},
        {"filename": "../outside.png", "subfolder": "", "type": "output"},
        {"filename": "given.png", "subfolder": "", "type": "input"},
    ]
    remove_outputs({"9": {"images": items, "text": ["words"]}}, folders)
    assert not mine.exists() and other.exists() and outside.exists() and given.exists()
