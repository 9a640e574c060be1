"""When a waiting job will begin, from how long the last runs took. Pure.

Each engine makes one job after another, the running one first; waiting jobs go, in their order, to the engine that is
free first. Every job is taken to last as long as the mean of the last ones did.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from statistics import fmean

REMEMBERED_RUNS = 20


class RunClock:
    """How long the last runs took on their engine."""

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=REMEMBERED_RUNS)

    def add(self, seconds: float) -> None:
        self._seconds.append(seconds)

    @property
    def mean_seconds(self) -> float:
        return fmean(self._seconds) if self._seconds else 0.0


def seconds_until_start(
    num_waiting: int, running_seconds: Sequence[float], num_engines: int, mean_seconds: float
) -> list[float]:
    """For each waiting job, in their order, the seconds until it begins; one entry more for a job that came last.

    `running_seconds` are how long each running job has run. One that has run longer than the mean may end any moment.
    """
    left = [max(0.0, mean_seconds - seconds) for seconds in running_seconds]
    free_in = left + [0.0] * (max(1, num_engines) - len(left))
    heapq.heapify(free_in)
    starts = []
    for _ in range(num_waiting + 1):
        start = heapq.heappop(free_in)
        starts.append(start)
        heapq.heappush(free_in, start + mean_seconds)
    return starts
