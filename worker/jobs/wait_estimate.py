"""Estimates of when a waiting job begins, from the durations and costs of the last runs. Pure.

Each engine runs one job after another, the running one first. Waiting jobs go, in order, to the engine that is free
first. A job's duration is estimated from its cost at the pace of the last runs. Before the first run, the pace is the
one measured by the start-up benchmark.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from statistics import fmean

REMEMBERED_RUNS = 20


class RunClock:
    """Durations of the last runs on their engines. Costs are those of `worker/jobs/cost.py`."""

    def __init__(self) -> None:
        self._runs: deque[tuple[float, float]] = deque(maxlen=REMEMBERED_RUNS)
        self._expected_seconds_per_cost = 0.0

    def expect(self, cost_per_second: float) -> None:
        """Set an engine's expected pace, used until its first run; 0 if unknown."""
        self._expected_seconds_per_cost = 1 / cost_per_second if cost_per_second > 0 else 0.0

    def add(self, seconds: float, cost: float) -> None:
        self._runs.append((seconds, cost))

    @property
    def has_runs(self) -> bool:
        """True once a job has run."""
        return bool(self._runs)

    @property
    def mean_seconds(self) -> float:
        """The mean duration of a job; 0 before the first run."""
        return fmean(seconds for seconds, _ in self._runs) if self._runs else 0.0

    def seconds_of(self, cost: float) -> float:
        """Return the expected duration of a job of this cost; 0 while the pace is unknown."""
        total_cost = sum(known for _, known in self._runs)
        if total_cost > 0:
            return cost * sum(seconds for seconds, _ in self._runs) / total_cost
        return cost * self._expected_seconds_per_cost


def seconds_until_start(
    waiting_seconds: Sequence[float], left_seconds: Sequence[float], num_engines: int
) -> list[float]:
    """Return the seconds until each waiting job begins, in order, and one more entry for a job that arrives last.

    `waiting_seconds` are the expected durations of the waiting jobs, `left_seconds` the remaining ones of the running
    jobs. A remaining duration is negative for a job that has exceeded its expected one and may end at any moment.
    """
    free_in = [max(0.0, left) for left in left_seconds]
    free_in += [0.0] * (max(1, num_engines) - len(free_in))
    heapq.heapify(free_in)
    starts = []
    for seconds in (*waiting_seconds, 0.0):
        start = heapq.heappop(free_in)
        starts.append(start)
        heapq.heappush(free_in, start + seconds)
    return starts
