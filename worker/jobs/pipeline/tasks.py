"""JobTasks: the tasks of the jobs on their way, and which of these jobs are to end before their time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import structlog

STOP_SECONDS = 5.0

log = structlog.get_logger("jobs")


class JobTasks:
    """One task for each job, with the jobs that were cancelled or have expired.

    A task that has not begun is not interrupted: it asks for its job's flags when it begins.
    """

    def __init__(self) -> None:
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._begun: set[str] = set()
        self._cancelled: set[str] = set()
        self._expired: set[str] = set()

    def __contains__(self, job_id: str) -> bool:
        return job_id in self._tasks

    def start(self, job_id: str, way: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start the task of a job."""
        task = self._tasks[job_id] = asyncio.create_task(way, name=f"job-{job_id}")
        return task

    def begin(self, job_id: str) -> None:
        """Record that a job's task has begun: from now on it is interrupted."""
        self._begun.add(job_id)

    def cancel(self, job_id: str) -> None:
        """Let a job end as cancelled."""
        self._cancelled.add(job_id)
        self._interrupt(job_id)

    def expire(self, job_id: str) -> None:
        """Let a job end as expired."""
        self._expired.add(job_id)
        self._interrupt(job_id)

    def is_cancelled(self, job_id: str) -> bool:
        """Return True if the job is to end as cancelled."""
        return job_id in self._cancelled

    def has_expired(self, job_id: str) -> bool:
        """Return True if the job is to end as expired."""
        return job_id in self._expired

    def unflag(self, job_id: str) -> None:
        """Forget why a job that has ended was to end."""
        self._cancelled.discard(job_id)
        self._begun.discard(job_id)
        self._expired.discard(job_id)

    def remove(self, job_id: str) -> None:
        """Remove the task of a job, which is over or has nothing to do any more."""
        self._tasks.pop(job_id, None)

    def interrupt_all(self, is_wanted: Callable[[str], bool] = lambda job_id: True) -> list[asyncio.Task[None]]:
        """Interrupt the tasks of some jobs, which stay on disk, and return them."""
        chosen = [task for job_id, task in self._tasks.items() if is_wanted(job_id)]
        for task in chosen:
            task.cancel()
        return chosen

    async def wait(self, seconds: float, ended: asyncio.Event) -> None:
        """Wait for all tasks to end, for at most `seconds` or until the event is set."""
        ending = asyncio.ensure_future(ended.wait())
        try:
            async with asyncio.timeout(seconds):
                while self._tasks and not ending.done():
                    await asyncio.wait({*self._tasks.values(), ending}, return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            log.warning("jobs deferred to next start", count=len(self._tasks))
        finally:
            ending.cancel()

    async def stop(self) -> None:
        """Interrupt all tasks, and wait for them a moment."""
        rest = self.interrupt_all()
        if rest:  # one whose last state the disk refuses does not hold up the end
            await asyncio.wait(rest, timeout=STOP_SECONDS)

    def _interrupt(self, job_id: str) -> None:
        task = self._tasks.get(job_id)
        if task is not None and job_id in self._begun:
            task.cancel()
