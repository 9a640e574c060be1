"""Admission control and backpressure: decide if a request becomes a job now, by its id, the room and the wait.

The graph check is passed in by the caller. A request with the id and body of an existing job of the same caller
attaches to that job; with another body it is refused. Two concurrent requests with one id become one job: the second
waits for the outcome of the first.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from darkroom.worker.errors import (
    DatabaseUnreachable,
    DiskLow,
    Draining,
    MemoryLow,
    NotReady,
    QueueFull,
    RequestIdConflict,
    RequestIdTaken,
    StateUnusable,
    TryLater,
    WaitTooLong,
)
from darkroom.worker.jobs.queue_info import QueueInfo
from darkroom.worker.settings.jobs import QueueLimits
from darkroom.worker.storage.job import Job
from darkroom.worker.storage.store import JobStore

PLAIN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def fresh_id() -> str:
    """Return an id that no job has."""
    return str(uuid.uuid4())


def clean_id(raw: str) -> str:
    """Return an id that is safe as a folder name and in a URL: the same for equal texts, different for others."""
    if not raw:
        return fresh_id()
    if PLAIN_ID.fullmatch(raw) and ".." not in raw:
        return raw
    plain = re.sub(r"[^A-Za-z0-9_-]+", "_", raw).strip("_-")[:80]
    return f"{plain or 'id'}-{sha256(raw.encode(errors='surrogatepass')).hexdigest()[:12]}"


class Gate:
    """The state of intake: closed until the worker is qualified, and again while it drains."""

    def __init__(self) -> None:
        self._is_draining = False
        self._reason = "The engine is starting"
        self._is_open = False

    @property
    def is_open(self) -> bool:
        return self._is_open and not self._is_draining

    @property
    def reason(self) -> str:
        """The reason why it is closed; empty if it is open."""
        return "Draining" if self._is_draining else "" if self._is_open else self._reason

    @property
    def is_draining(self) -> bool:
        return self._is_draining

    def open(self) -> None:
        self._is_open = True

    def drain(self) -> None:
        """Refuse every further job of this process."""
        self._is_draining = True

    def close(self, reason: str) -> None:
        self._is_open = False
        self._reason = reason

    def check(self) -> None:
        if self._is_draining:
            raise Draining("The worker is shutting down", retry_after_seconds=30)
        if not self._is_open:
            raise NotReady(f"The worker is not ready: {self._reason}", retry_after_seconds=5)


@dataclass(frozen=True, slots=True)
class Admitted:
    job: Job
    is_new: bool


class Admission:
    def __init__(
        self,
        store: JobStore,
        gate: Gate,
        limits: QueueLimits,
        queue_info: QueueInfo,
        free_bytes: Callable[[], int],
        free_memory_bytes: Callable[[], int | None] = lambda: None,
    ) -> None:
        self._store = store
        self._gate = gate
        self._limits = limits
        self._queue_info = queue_info
        self._free_bytes = free_bytes
        self._free_memory_bytes = free_memory_bytes
        self._arriving: dict[str, asyncio.Future[None]] = {}

    async def admit(
        self,
        job_id: str,
        body_hash: str,
        make_job: Callable[[], Awaitable[Job]],
        priority: int = 0,
        begin: Callable[[Job], None] = lambda job: None,
        *,
        is_fresh: bool = False,
        owner: str = "",
    ) -> Admitted:
        """Return the job for a request: the existing one under this id, or a new one from `make_job`, which checks it.

        If `is_fresh`, no other request can have the id, so no job is looked up. `owner` is the name of the caller's
        key. A new job is on disk when this returns. If the caller is cancelled during the write, `begin` is called with
        the job once it is written. Raises RequestIdTaken if the id is another caller's, RequestIdConflict, TryLater and
        the errors of `make_job`.
        """
        while (arriving := self._arriving.get(job_id)) is not None:
            await asyncio.shield(arriving)
        existing = None if is_fresh else await self._store.find(job_id)
        if existing is None and job_id not in self._arriving:
            return await self._admit_new(job_id, make_job, priority, begin)
        if existing is None:
            return await self.admit(job_id, body_hash, make_job, priority, begin, owner=owner)
        if existing.owner not in (None, owner):
            raise RequestIdTaken("request_id: taken; expected another id", request_id=job_id)
        if existing.body_hash != body_hash:
            named = existing.public_id
            raise RequestIdConflict(f"request_id {named} belongs to a request with another body", request_id=named)
        return Admitted(existing, is_new=False)

    async def _admit_new(
        self, job_id: str, make_job: Callable[[], Awaitable[Job]], priority: int, begin: Callable[[Job], None]
    ) -> Admitted:
        arriving = self._arriving[job_id] = asyncio.get_running_loop().create_future()
        try:
            self.check_room(priority)
            job = await make_job()
            self.check_room(priority)
            self._check_expiry(job)
            await self._insert(job, begin)
        except StateUnusable as error:
            if self._store.database.problem and self._store.database.is_remote:
                raise DatabaseUnreachable(error.message, retry_after_seconds=5) from None
            raise DiskLow(error.message, retry_after_seconds=30) from None
        finally:
            del self._arriving[job_id]
            arriving.set_result(None)
        return Admitted(job, is_new=True)

    async def _insert(self, job: Job, begin: Callable[[Job], None]) -> None:
        inserting = self._store.insert(job)  # counted from here on, so that the limit is not exceeded
        try:
            await asyncio.shield(inserting)
        except asyncio.CancelledError:
            inserting.add_done_callback(lambda done: begin(job) if _is_well(done) else None)
            raise

    def check_room(self, priority: int = 0) -> None:
        """Raise TryLater if no further job of this priority is accepted now."""
        self._gate.check()
        problem = self._room_problem(priority)
        if problem is not None:
            raise problem

    def _check_expiry(self, job: Job) -> None:
        """Raise WaitTooLong for a job that would expire before its turn. One of a broker has waited there by now."""
        limit = job.request.expires_seconds
        if limit is None or job.request.receipt:
            return
        wait = self._queue_info.wait_of_a_new_job(job.request.priority)
        if wait > limit:
            message = f"The job would wait for about {wait:.1f} s; got a limit of {limit:g} s (expires)"
            raise WaitTooLong(
                message, estimated_wait_seconds=round(wait, 1), retry_after_seconds=max(1.0, wait - limit)
            )  # fmt: skip

    def _room_problem(self, priority: int) -> TryLater | None:
        if self._store.database.problem and self._store.database.is_remote:
            return DatabaseUnreachable(self._store.database.problem)
        in_flight = len(self._store.jobs)
        if in_flight >= self._limits.max_queued:
            retry = max(1.0, min(60.0, self._queue_info.seconds_per_job or 5.0))
            return QueueFull(f"Worker at capacity ({in_flight} in flight); retry shortly", retry_after_seconds=retry)
        free = self._free_bytes()
        if free < self._limits.min_free_disk_bytes:
            return DiskLow("The disk is almost full", free_bytes=free, retry_after_seconds=30)
        left = self._free_memory_bytes()
        if left is not None and left < self._limits.min_free_memory_bytes:
            return MemoryLow("The memory is almost full", free_bytes=left, retry_after_seconds=10)
        if self._limits.max_wait_seconds is None:
            return None
        wait = self._queue_info.wait_of_a_new_job(priority)
        if wait > self._limits.max_wait_seconds:
            message = f"Estimated wait {wait:.1f} s is over the limit of {self._limits.max_wait_seconds:g} s"
            return WaitTooLong(message, estimated_wait_seconds=round(wait, 1), retry_after_seconds=max(1.0, wait / 2))
        return None


def _is_well(done: asyncio.Future[None]) -> bool:
    return not done.cancelled() and done.exception() is None


def free_bytes_of(*directories: Path) -> Callable[[], int]:
    """Return a function that gives the free bytes of the fullest file system among those of the directories.

    The directories need not exist yet.
    """
    return lambda: min(shutil.disk_usage(_nearest(directory)).free for directory in directories)


def _nearest(directory: Path) -> Path:
    """Return the directory, or its nearest existing parent."""
    return next(path for path in (directory, *directory.parents) if path.exists())
