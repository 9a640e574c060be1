"""Clients that wait for a synchronous job; the job is cancelled after a grace period without any of them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from darkroom.worker.jobs.pipeline.pipeline import Pipeline
from darkroom.worker.storage.job import Job


class SyncWaiters:
    """Number of waiting clients by job, and the timers of jobs without one."""

    def __init__(self, pipeline: Pipeline, grace_seconds: float) -> None:
        self._pipeline = pipeline
        self._grace_seconds = grace_seconds
        self._num_waiting: dict[str, int] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}

    @contextmanager
    def waiting(self, job: Job, *, is_owner: bool) -> Iterator[None]:
        """Count a client as waiting while the block lasts. Only jobs of synchronous requests are ever cancelled."""
        if is_owner or job.id in self._timers or job.id in self._num_waiting:
            self._num_waiting[job.id] = self._num_waiting.get(job.id, 0) + 1
            timer = self._timers.pop(job.id, None)
            if timer is not None:
                timer.cancel()
        try:
            yield
        finally:
            self._end_wait(job)

    def detach(self, job: Job) -> None:
        """Exempt a job from cancellation: a client asked for it without waiting for it here."""
        self._num_waiting.pop(job.id, None)
        timer = self._timers.pop(job.id, None)
        if timer is not None:
            timer.cancel()

    def _end_wait(self, job: Job) -> None:
        num_waiting = self._num_waiting.get(job.id)
        if num_waiting is None:
            return
        if num_waiting > 1:
            self._num_waiting[job.id] = num_waiting - 1
            return
        del self._num_waiting[job.id]
        if not job.state.is_terminal:
            loop = asyncio.get_running_loop()
            self._timers[job.id] = loop.call_later(self._grace_seconds, self._cancel_abandoned, job)

    def _cancel_abandoned(self, job: Job) -> None:
        self._timers.pop(job.id, None)
        if not self._pipeline.is_deferred(job):  # its client has been informed that the job resumes at the next start
            self._pipeline.cancel(job)
