"""The soak's own judgement of leaks, and a share of the soak itself."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest

from tests.faults.soak import Holdings, find_leaks, play

BEFORE = Holdings(memory_mb=90.0, open_files=30, threads=8, tasks=12)


def test_what_is_back_where_it_was_is_no_leak() -> None:
    assert find_leaks(BEFORE, Holdings(memory_mb=95.0, open_files=31, threads=7, tasks=12)) == []


def test_what_has_grown_is_named() -> None:
    grown = Holdings(memory_mb=130.0, open_files=90, threads=40, tasks=60)
    assert [leak.split()[0] for leak in find_leaks(BEFORE, grown)] == ["memory_mb", "open_files", "threads", "tasks"]


@pytest.mark.slow
@pytest.mark.timeout(1200)
async def test_two_minutes_of_faults_lose_nothing_and_leave_nothing_behind(tmp_path: Path) -> None:
    summary = await play(tmp_path, 120, secrets.randbelow(2**32))
    assert (summary["wrong"], summary["leaks"]) == ([], []), summary
