"""Estimates of when a waiting job begins, from the durations and costs of the last runs. Pure.

Each engine runs one job after another, the running one first. Waiting jobs go, in order, to the engine that is free
first. A job's duration is estimated from its cost at the pace of the last runs. Before the first run, the pace is the
one measured by the start-up benchmark.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

REMEMBERED_RUNS = 20
UNKNOWN_PACE = "no job and no benchmark was run yet"


@dataclass(frozen=True, slots=True)
class Run:
    """A run of a job: its seconds on the engine, its cost, and the number of files that it made."""

    seconds: float
    cost: float
    num_files: int = 0


class RunClock:
    """Durations of the last runs on their engines. Costs are those of `contract/graph/cost.py`."""

    def __init__(self, earlier: Sequence[Run] = ()) -> None:
        """`earlier`: runs from before this start, used while there is neither a new run nor a measured pace."""
        self._runs: deque[Run] = deque(maxlen=REMEMBERED_RUNS)
        self._earlier = tuple(earlier[-REMEMBERED_RUNS:])
        self._expected_seconds_per_cost = 0.0
        self._assumed_seconds_per_cost = 0.0

    def expect(self, cost_per_second: float, *, is_estimate: bool = False) -> None:
        """Set an engine's pace by the benchmark, used until its first run; 0 if unknown.

        `is_estimate`: it was measured with a smaller network, and no queue is to rely on it.
        """
        seconds = 1 / cost_per_second if cost_per_second > 0 else 0.0
        self._expected_seconds_per_cost = 0.0 if is_estimate else seconds
        self._assumed_seconds_per_cost = seconds

    def add(self, seconds: float, cost: float, num_files: int = 0) -> None:
        self._runs.append(Run(seconds, cost, num_files))

    @property
    def known_runs(self) -> tuple[Run, ...]:
        """The last runs, those from before this start among them, the newest last."""
        return (*self._earlier, *self._runs)[-REMEMBERED_RUNS:]

    @property
    def has_runs(self) -> bool:
        """True once a job has run."""
        return bool(self._runs)

    @property
    def mean_seconds(self) -> float:
        """The mean duration of a job; 0 before the first run."""
        return fmean(run.seconds for run in self._runs) if self._runs else 0.0

    @property
    def seconds_per_file(self) -> float | None:
        """Seconds of an engine for each file that the last runs made; None where they made none."""
        made = [run for run in self.known_runs if run.num_files > 0]
        return sum(run.seconds for run in made) / sum(run.num_files for run in made) if made else None

    def seconds_of(self, cost: float) -> float:
        """Return the expected duration of a job of this cost; 0 while the pace is unknown."""
        return _at_pace(self._runs, cost) or cost * self._expected_seconds_per_cost or _at_pace(self._earlier, cost)

    def plan(self, cost: float) -> tuple[float, str]:
        """Return the seconds of a job of this cost and where they are from; 0 and the reason where nothing is known.

        Unlike `seconds_of` it takes an estimate too, since nothing is refused by it.
        """
        sources = (
            (_at_pace(self._runs, cost), "jobs of this worker"),
            (cost * self._expected_seconds_per_cost, "the benchmark of this worker"),
            (_at_pace(self._earlier, cost), "jobs of this worker before its last start"),
            (cost * self._assumed_seconds_per_cost, "an estimate from the benchmark of a smaller network"),
        )
        return next(((seconds, source) for seconds, source in sources if seconds > 0), (0.0, UNKNOWN_PACE))


def _at_pace(runs: Iterable[Run], cost: float) -> float:
    """Return the seconds of a cost at the pace of the runs; 0 where they have none."""
    known = tuple(runs)
    total_cost = sum(run.cost for run in known)
    return cost * sum(run.seconds for run in known) / total_cost if total_cost > 0 else 0.0


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
