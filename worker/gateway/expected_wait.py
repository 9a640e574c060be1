"""ExpectedWait: refuses jobs at once that would wait for longer than their limits allow.

The wait is that of the jobs that go before at the mean of the last jobs' seconds, shared by the runs that all workers
make at a time. At a broker only jobs count that certainly go before: it does not tell whose the others are. Where
nothing is measured yet, or no worker is there, nothing is refused: an autoscaler may be about to start some.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from statistics import fmean
from typing import Final

from darkroom.worker.api.schemas import GenerateInput
from darkroom.worker.errors import WaitTooLong
from darkroom.worker.gateway.fleet import Fleet
from darkroom.worker.gateway.job_records import JobRecords
from darkroom.worker.gateway.queue.queue import DatabaseQueue, rank_of
from darkroom.worker.sources.broker import BrokerUnreachable, Producer, StreamDepth
from darkroom.worker.sources.stream_order import PRIORITIES

MEASURED_JOBS: Final = 50
FRESH_SECONDS: Final = 5.0
LONGEST_RETRY_SECONDS: Final = 300.0


class ExpectedWait:
    """Owner of the measured seconds. `max_seconds` is the longest wait of any job; None: no limit."""

    def __init__(
        self, fleet: Fleet, producer: Producer, records: JobRecords, max_seconds: float | None
    ) -> None:  # fmt: skip
        self._fleet = fleet
        self._producer = producer
        self._records = records
        self._max_seconds = max_seconds
        self._measured = 0.0, float("-inf")  # seconds of a job, and when they were read

    async def check(self, given: GenerateInput, priority: int, owner: str) -> None:
        """Raise WaitTooLong for a job whose `expires`, `deadline` or longest wait would be over before its turn."""
        if self._max_seconds is None and given.expires is None and given.deadline is None:
            return
        num_runs = sum(map(runs_of, await self._fleet.entries()))
        seconds = await self._seconds_of_a_job() if num_runs else 0.0
        if seconds:
            try:
                num_before = await self._num_before(priority, owner, num_runs)
            except BrokerUnreachable:  # it is accepted, and sent when the broker is back
                return
            refuse_long_wait(wait_seconds(num_before, num_runs, seconds), seconds, given, self._max_seconds)

    async def _num_before(self, priority: int, owner: str, num_runs: int) -> int:
        if isinstance(self._producer, DatabaseQueue):
            return await self._producer.num_before(priority, owner, num_runs)
        return certainly_before(await self._producer.depths(), priority, owner)

    async def _seconds_of_a_job(self) -> float:
        seconds, read_at = self._measured
        if time.monotonic() - read_at > FRESH_SECONDS:
            seconds = mean_seconds(await self._records.last_times(MEASURED_JOBS))
            self._measured = seconds, time.monotonic()
        return seconds


def mean_seconds(times: Iterable[str]) -> float:
    """Return the mean time of engines for a job, by the stored times of jobs; 0 where none has one. Pure."""
    found = [known for text in times if (known := json.loads(text).get("generation_ms"))]
    return fmean(found) / 1000 if found else 0.0


def runs_of(entry: Mapping[str, object]) -> int:
    """Return the runs that a worker makes at a time, by its announcement; 1 for one that does not tell. Pure."""
    num_runs = entry.get("num_runs")
    return num_runs if isinstance(num_runs, int) and num_runs > 0 else 1


def certainly_before(depths: Iterable[StreamDepth], priority: int, owner: str) -> int:
    """Return the jobs at a broker that go before a new one whoever they are of: keys take turns. Pure.

    Without keys all jobs are of one owner, and those of the same priority go before, too.
    """
    rank = rank_of(priority)
    ranks = PRIORITIES[: rank if owner else rank + 1]
    return sum(depth.num_jobs for depth in depths if depth.priority in ranks)


def wait_seconds(num_before: int, num_runs: int, seconds: float) -> float:
    """Return the time until a job begins that has so many before it, those that workers hold among them. Pure."""
    return max(0, num_before - num_runs + 1) / num_runs * seconds


def refuse_long_wait(wait: float, seconds: float, given: GenerateInput, max_seconds: float | None) -> None:
    """Raise WaitTooLong where a wait is over a limit. A deadline is that of the end, `seconds` after the start."""
    limits = {
        "MAX_QUEUE_TIME": max_seconds,
        "expires": given.expires,
        "deadline": None if given.deadline is None else max(0.0, given.deadline - seconds),
    }
    over = {name: limit for name, limit in limits.items() if limit is not None and wait > limit}
    if over:
        name, limit = min(over.items(), key=lambda item: item[1])
        message = f"The job would wait for about {wait:.0f} s; got a limit of {limit:.0f} s ({name})"
        retry = min(LONGEST_RETRY_SECONDS, max(1.0, wait - limit))
        raise WaitTooLong(message, estimated_wait_seconds=round(wait, 1), retry_after_seconds=retry)
