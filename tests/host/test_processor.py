"""Processor time as the kernel's files show it."""

from __future__ import annotations

import os
from pathlib import Path

from darkroom.host.processor import busy_seconds, process_seconds

TICKS = os.sysconf("SC_CLK_TCK")


def test_waiting_for_the_disk_is_idle_and_guests_are_not_counted_twice(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/stat").write_text(f"cpu  {TICKS} {TICKS} 0 {5 * TICKS} {TICKS} 0 0 0 {9 * TICKS} 0\ncpu0 1\n")
    assert busy_seconds(tmp_path) == (2.0, 6.0)


def test_a_machine_that_tells_nothing_has_no_figure(tmp_path: Path) -> None:
    assert busy_seconds(tmp_path) is None and process_seconds(1, tmp_path) is None


def test_this_process_has_spent_time() -> None:
    seconds = process_seconds(os.getpid())
    assert seconds is not None and seconds > 0
