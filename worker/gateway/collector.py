"""Collector: stores the results of jobs that nobody waits for at this gateway.

Ends come with the broker's news, to every gateway. Each waits for a moment by chance before it looks, so that the first
one has stored the result when the others look. What no news had (all gateways were away, a worker of an earlier
version) is found by going through all jobs that have not ended, some of them each second, however many there are.
"""

from __future__ import annotations

import random
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from darkroom.worker.gateway.job_records import JobRecords, broker_id, number_of
from darkroom.worker.sources.broker import Producer
from darkroom.worker.storage.job import Job

BATCH: Final = 500
WAIT_SECONDS: Final = 1.0, 3.0
"""Least and longest wait before a result is stored that somebody at another gateway may be waiting for."""

MAX_NOTED: Final = 50_000  # ends; more are found as those without news are


class Collector:
    """Owner of the ends that are to be stored. `end` stores the result that the broker has of a job."""

    def __init__(self, records: JobRecords, producer: Producer, end: Callable[[Job], Awaitable[Job | None]]) -> None:
        self._records = records
        self._producer = producer
        self._end = end
        self._noted: OrderedDict[int, float] = OrderedDict()
        self._number = -1

    def note(self, name: str) -> None:
        """Note that a job has ended whose result nobody here asks for."""
        number = number_of(name)
        if number is not None:
            self._noted[number] = time.monotonic() + random.uniform(*WAIT_SECONDS)
            if len(self._noted) > MAX_NOTED:
                self._noted.popitem(last=False)

    async def collect(self) -> None:
        """Store noted ends whose time has come, and those among the next jobs that have not ended.

        Raises BrokerUnreachable and DatabaseUnreachable.
        """
        now = time.monotonic()
        due = [number for number, at in self._noted.items() if at <= now][:BATCH]
        if due:
            await self._store(await self._records.live_among(due))
            for number in due:
                self._noted.pop(number, None)
        page = await self._records.live_ids(self._number, BATCH)
        self._number = page[-1][0] if len(page) == BATCH else -1
        await self._store(page)

    async def _store(self, live: Iterable[tuple[int, str]]) -> None:
        ids = {broker_id(number): job_id for number, job_id in live}
        for name in await self._producer.result_sizes(list(ids)):
            job = await self._records.find(ids[name])
            if job is not None:
                await self._end(job)
