"""Priorities of jobs: their range, and the position in time that a priority gives. Pure."""

from __future__ import annotations

MIN_PRIORITY, MAX_PRIORITY = -10, 10
DEFAULT_PRIORITY_STEP_SECONDS = 60.0


def turn_ms_of(since_ms: int, priority: int, step_ms: int) -> int:
    """Return a job's position in time: its arrival, earlier by one step for each degree of its priority.

    A higher priority overtakes, yet no job starves: after a while, new jobs of the highest priority have a later turn
    than the oldest job of the lowest. The order of two jobs never changes.
    """
    return since_ms - priority * step_ms
