"""QueueDeadlines: timers of jobs that are to end unless an engine begins in time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from darkroom.worker.storage.job import Job, JobState

BEFORE_RUN = frozenset({JobState.PENDING, JobState.PROCESSING})


def seconds_left(job: Job, now_ms: int) -> float | None:
    """Return the seconds until a job expires, 0 if it has; None for a job that cannot expire (any more). Pure."""
    allowed = job.request.expires_seconds
    if allowed is None or job.state not in BEFORE_RUN:
        return None
    return max(0.0, job.times.queued_at_ms / 1000 + allowed - now_ms / 1000)


class QueueDeadlines:
    """One timer for each waiting job with a deadline; `on_expired` is called with each job that expires."""

    def __init__(self, on_expired: Callable[[Job], None]) -> None:
        self._on_expired = on_expired
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def begin(self, job: Job) -> None:
        """Start the timer of a job that has a deadline."""
        self.end(job.id)
        seconds = seconds_left(job, int(time.time() * 1000))
        if seconds is not None:
            self._timers[job.id] = asyncio.get_running_loop().call_later(seconds, self._expire, job)

    def end(self, job_id: str) -> None:
        """Stop the timer of a job, if it has one."""
        timer = self._timers.pop(job_id, None)
        if timer is not None:
            timer.cancel()

    def _expire(self, job: Job) -> None:
        del self._timers[job.id]
        if job.state in BEFORE_RUN:
            self._on_expired(job)
