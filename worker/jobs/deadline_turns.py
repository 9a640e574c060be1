"""Turns of jobs with a deadline: one that would be late goes before jobs that have time. Pure.

It overtakes as few jobs as it can, none of a higher priority, none that has waited for long, and none that would miss a
deadline of its own by that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from darkroom.worker.jobs.wait_estimate import seconds_until_start

OVERTAKEN_SECONDS: Final = 600.0
"""Wait after which a job is no longer overtaken for a deadline, so that none starves."""


@dataclass(frozen=True, slots=True)
class QueuedRun:
    """A job that waits. `latest_start_seconds` is when it has to begin; infinite without a deadline."""

    turn_ms: int
    seconds: float
    waited_seconds: float = 0.0
    priority: int = 0
    latest_start_seconds: float = math.inf
    is_at_engine: bool = False


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a new job: seconds until it begins, and the turn that gives it; None for its usual turn."""

    wait_seconds: float
    turn_ms: int | None = None


def place_of(new: QueuedRun, queue: Sequence[QueuedRun], left_seconds: Sequence[float], num_engines: int) -> Place:
    """Return the last place at which a new job begins in time, its usual one if there is none.

    `queue` is in the order of the engines, `left_seconds` are those of running jobs.
    """
    usual = next(
        (number for number, run in enumerate(queue) if not run.is_at_engine and run.turn_ms > new.turn_ms), len(queue)
    )
    starts = seconds_until_start([run.seconds for run in queue], left_seconds, num_engines)
    place = usual
    while starts[place] > new.latest_start_seconds:
        if place == 0 or not _may_be_overtaken(queue[place - 1], new):
            return Place(starts[usual])
        place -= 1
    if place == usual:
        return Place(starts[usual])
    order = [*queue[:place], new, *queue[place:]]
    moved = seconds_until_start([run.seconds for run in order], left_seconds, num_engines)
    for number in range(place, len(queue)):
        latest = queue[number].latest_start_seconds
        if starts[number] <= latest < moved[number + 1]:
            return Place(starts[usual])
    return Place(starts[place], queue[place].turn_ms - 1)


def _may_be_overtaken(run: QueuedRun, new: QueuedRun) -> bool:
    return not run.is_at_engine and run.priority <= new.priority and run.waited_seconds < OVERTAKEN_SECONDS
