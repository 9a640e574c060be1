"""Fetched files stay while a job needs them, and leave by age and by sum."""

from __future__ import annotations

import os
import time
from pathlib import Path

from darkroom.worker.inputs.folder import InputFolder, StoredFile, surplus


def files(*ages: float) -> list[StoredFile]:
    """Return files of 10 bytes each, unused for so many seconds before the time 1000."""
    return [StoredFile(f"{age:g}", 10, 1000 - age) for age in ages]


def test_the_longest_unused_leave_first_when_the_sum_is_too_large() -> None:
    assert surplus(files(1, 2, 3, 4), (), 0, 25) == ["3", "4"]


def test_what_was_unused_too_long_leaves_whatever_the_sum() -> None:
    assert surplus(files(1, 50, 60), (), 1000 - 40, 1000) == ["50", "60"]


def test_what_a_job_needs_stays_and_counts() -> None:
    assert surplus(files(1, 2, 900), ("900",), 1000 - 40, 20) == ["2"]
    assert surplus(files(900), ("900",), 1000 - 40, 0) == []


def put(folder: InputFolder, name: str, content: bytes = b"x") -> None:
    partial = folder.path / ".partial-1"
    partial.write_bytes(content)
    folder.keep(partial, name)


def test_a_file_of_two_jobs_stays_until_both_have_ended(tmp_path: Path) -> None:
    folder = InputFolder(tmp_path)
    put(folder, "a.png")
    assert folder.hold("a.png", "one") and folder.hold("a.png", "two")
    folder.release("one")
    assert folder.sweep(time.time() + 10, 0) == []
    folder.release("two")
    assert folder.sweep(time.time() + 10, 0) == ["a.png"] and not os.listdir(tmp_path)


def test_a_file_that_is_gone_cannot_be_held(tmp_path: Path) -> None:
    assert not InputFolder(tmp_path).hold("a.png", "one")


def test_the_beginnings_that_a_crash_left_go_after_a_day(tmp_path: Path) -> None:
    for name, age in ((".partial-old", 90_000), (".partial-new", 10)):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (time.time() - age,) * 2)
    InputFolder(tmp_path).sweep(0, 0)
    assert os.listdir(tmp_path) == [".partial-new"]


def test_a_folder_that_is_not_there_is_empty(tmp_path: Path) -> None:
    assert InputFolder(tmp_path / "none").sweep(0, 0) == []
