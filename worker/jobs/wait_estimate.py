"""When a waiting job will begin, from how long the last runs took for what they cost. Pure.

Each engine makes one job after another, the running one first; waiting jobs go, in their order, to the engine that is
free first. A job is taken to last as its cost says, at the pace of the last ones; before the first, at the pace that
the start-up benchmark measured.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from statistics import fmean

REMEMBERED_RUNS = 20


class RunClock:
    """How long the last runs took on their engine. Costs are those of `worker/jobs/cost.py`."""

    def __init__(self) -> None:
        self._runs: deque[tuple[float, float]] = deque(maxlen=REMEMBERED_RUNS)
        self._expected_seconds_per_cost = 0.0

    def expect(self, cost_per_second: float) -> None:
        """What an engine should do, until the first run has shown it; 0 where nothing is known."""
        self._expected_seconds_per_cost = 1 / cost_per_second if cost_per_second > 0 else 0.0

    def add(self, seconds: float, cost: float) -> None:
        self._runs.append((seconds, cost))

    @property
    def mean_seconds(self) -> float:
        """Of one job; 0 before the first."""
        return fmean(seconds for seconds, _ in self._runs) if self._runs else 0.0

    def seconds_of(self, cost: float) -> float:
        """How long a job of this cost takes; 0 as long as nothing is known."""
        total_cost = sum(known for _, known in self._runs)
        if total_cost > 0:
            return cost * sum(seconds for seconds, _ in self._runs) / total_cost
        return cost * self._expected_seconds_per_cost


def seconds_until_start(
    waiting_seconds: Sequence[float], left_seconds: Sequence[float], num_engines: int
) -> list[float]:
    """For each waiting job, in their order, the seconds until it begins; one entry more for a job that came last.

    `waiting_seconds` are how long each of them will take, `left_seconds` how long the running ones will go on; less
    than 0 for one that has taken longer than it should, and may end any moment.
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
