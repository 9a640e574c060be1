"""FairTurns: so many jobs of one caller at a stage at once; the others of that caller wait, and nobody waits for them.

A job that has had to wait for its caller's earlier ones joins the end of the line when its turn among them comes. So
callers with many jobs take turns with those that have few, and no caller can hold up another by sending more.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from worker.jobs.job import Job
from worker.jobs.places import PlacesByName


class FairTurns:
    """`num_places` None: no limit. `turn_ms` gives the turn of a job that came at a time with a priority."""

    def __init__(self, num_places: int | None, turn_ms: Callable[[int, int], int]) -> None:
        self._num_places = num_places
        self._turn_ms = turn_ms
        self._places = PlacesByName(num_places or 1)
        self._num_inside: Counter[str] = Counter()

    @asynccontextmanager
    async def turn(self, job: Job, *, is_inside: bool = False) -> AsyncIterator[None]:
        """Entered when one of the caller's places is free. `is_inside`: the job is at the stage already."""
        caller = job.request.caller
        if self._num_places is None or not caller or is_inside:
            yield
            return
        has_to_wait = self._num_inside[caller] >= self._num_places
        async with self._places.place(caller, job.order):
            self._num_inside[caller] += 1
            if has_to_wait:
                job.turn_ms = max(job.turn_ms, self._turn_ms(int(time.time() * 1000), job.request.priority))
            try:
                yield
            finally:
                self._num_inside[caller] -= 1
                if not self._num_inside[caller]:
                    del self._num_inside[caller]
