"""FairTurns: a limit on the jobs of one caller at a stage; further ones wait without blocking other callers.

A job that had to wait for earlier jobs of its caller joins the end of the queue when its turn among them comes. Callers
with many jobs therefore take turns with callers that have few, and no caller can delay another by sending more.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from darkroom.worker.jobs.priority_semaphore import PrioritySemaphores
from darkroom.worker.storage.job import Job


class FairTurns:
    """A limit of slots per caller.

    `num_slots` None: no limit. `turn_ms` returns the turn of a job from its arrival time and its priority.
    """

    def __init__(self, num_slots: int | None, turn_ms: Callable[[int, int], int]) -> None:
        self._num_slots = num_slots
        self._turn_ms = turn_ms
        self._slots = PrioritySemaphores(num_slots or 1)
        self._num_inside: Counter[str] = Counter()

    @asynccontextmanager
    async def turn(self, job: Job, *, is_inside: bool = False) -> AsyncIterator[None]:
        """Wait for one of the caller's slots and hold it. `is_inside`: the job is at the stage already."""
        caller = job.request.caller
        if self._num_slots is None or not caller or is_inside:
            yield
            return
        has_to_wait = self._num_inside[caller] >= self._num_slots
        async with self._slots.acquire(caller, job.order):
            self._num_inside[caller] += 1
            if has_to_wait:
                job.turn_ms = max(job.turn_ms, self._turn_ms(int(time.time() * 1000), job.request.priority))
            try:
                yield
            finally:
                self._num_inside[caller] -= 1
                if not self._num_inside[caller]:
                    del self._num_inside[caller]
