"""Autoscaler: interface to the platform that decides the number of workers and gets reports about this one.

The front reports facts; each platform's module translates them. No method here blocks: reports are sent by tasks that
`start()` begins. Costs are those of `contract/graph/cost.py`, speeds costs per second.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from darkroom.worker.errors import WorkerError
from darkroom.worker.storage.job import JobState


@dataclass(frozen=True, slots=True)
class Caller:
    """Platform's own identifiers of a request that came through it."""

    request_idx: int | None = None
    reqnum: int | None = None
    session_id: str | None = None


class Autoscaler(Protocol):
    async def start(self) -> None:
        """Start to report; the worker is loading. Raises OSError when a port is taken."""
        ...

    async def close(self) -> None: ...

    def loaded(self, speed: float) -> None:
        """Report that jobs are accepted now. Raises ValueError for a speed that is not above 0."""
        ...

    def error_set(self, message: str) -> None:
        """Report that the worker cannot serve, until `error_cleared`."""
        ...

    def error_cleared(self) -> None: ...

    def draining(self) -> None:
        """Report that no more jobs are accepted; accepted ones end first."""
        ...

    def job_accepted(self, job_id: str, cost: float, caller: Caller | None) -> None:
        """Report that a request became a job, or, when the id is known, attached to one."""
        ...

    def job_started(self, job_id: str) -> None:
        """Report that the engine runs the job."""
        ...

    def job_ended(self, job_id: str, state: JobState) -> None: ...

    def request_refused(self, cost: float, caller: Caller | None, error: WorkerError) -> None:
        """Report that a request did not become a job."""
        ...


class FanOut:
    """Fan-out of every report to several autoscalers, in order."""

    def __init__(self, members: Sequence[Autoscaler]) -> None:
        self._members = tuple(members)

    async def start(self) -> None:
        for member in self._members:
            await member.start()

    async def close(self) -> None:
        for member in reversed(self._members):
            await member.close()

    def loaded(self, speed: float) -> None:
        for member in self._members:
            member.loaded(speed)

    def error_set(self, message: str) -> None:
        for member in self._members:
            member.error_set(message)

    def error_cleared(self) -> None:
        for member in self._members:
            member.error_cleared()

    def draining(self) -> None:
        for member in self._members:
            member.draining()

    def job_accepted(self, job_id: str, cost: float, caller: Caller | None) -> None:
        for member in self._members:
            member.job_accepted(job_id, cost, caller)

    def job_started(self, job_id: str) -> None:
        for member in self._members:
            member.job_started(job_id)

    def job_ended(self, job_id: str, state: JobState) -> None:
        for member in self._members:
            member.job_ended(job_id, state)

    def request_refused(self, cost: float, caller: Caller | None, error: WorkerError) -> None:
        for member in self._members:
            member.request_refused(cost, caller, error)


def checked_speed(speed: float) -> float:
    """Return a speed above 0. Raises ValueError otherwise: a worker is never reported as loaded at speed zero."""
    if not 0 < speed < float("inf"):
        raise ValueError(f"a loaded worker has a speed above 0, not {speed}")
    return speed
