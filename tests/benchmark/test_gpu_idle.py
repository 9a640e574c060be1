"""Idle time between pieces of work, from made-up times."""

from __future__ import annotations

from benchmark.gpu_idle import idle_seconds


def test_idle_is_what_no_work_covers() -> None:
    assert idle_seconds([(0.0, 1.0), (1.5, 2.0), (2.0, 4.0), (3.0, 3.5), (4.25, 5.0)]) == 0.75


def test_work_without_gaps_has_no_idle_time() -> None:
    assert idle_seconds([(0.0, 2.0), (1.0, 3.0)]) == 0.0
