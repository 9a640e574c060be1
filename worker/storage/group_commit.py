"""GroupCommit: one writer task that commits changes of the job database in groups.

Changes gathered during a commit are part of the next one. If the disk refuses a commit (because it is full, for
example), or the server is unreachable, insertions fail, and every change is kept and written as soon as possible. A
change that fails for a reason of its own does not block the others.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import replace

import sqlalchemy as sa
import structlog

from darkroom.worker.errors import StateUnusable
from darkroom.worker.storage.commit_group import CommitGroup, Rows
from darkroom.worker.storage.database import FACT_UPSERT, JOBS
from darkroom.worker.storage.database_thread import DatabaseThread
from darkroom.worker.storage.job import Job
from darkroom.worker.storage.webhook_rows import Write

LAZY_SECONDS = 0.05
RETRY_SECONDS = 1.0
WRITTEN_FACT = "written"
"""Fact that is stored to find out if the disk takes writes again."""
MAX_TRIES = 3  # tries of a change that fails for a reason other than the disk

log = structlog.get_logger("jobs.store")

_INSERT_JOB = sa.insert(JOBS)
_UPDATE_JOB = (
    sa.update(JOBS)
    .where(JOBS.c.id == sa.bindparam("job_id"), JOBS.c.queued_ms == sa.bindparam("job_queued_ms"))
    .values(
        {
            name: sa.bindparam(name)
            for name in (
                "credentials",
                "state",
                "stage",
                "attempt",
                "seq",
                "message",
                "outputs",
                "engine_response",
                "failure",
                "tuning",
                "times",
                "finished_ms",
            )
        }
    )
)


class ChangeUnwritable(StateUnusable):
    """A change of one job that cannot be written independently of the disk; others of the same commit can."""


class GroupCommit:
    """Changes that are to be written, and the task that writes them. `on_committed` is called after each commit."""

    def __init__(self, database: DatabaseThread, on_committed: Callable[[], None] = lambda: None) -> None:
        self._database = database
        self._on_committed = on_committed
        self._group = CommitGroup()
        self._failures: Counter[str] = Counter()
        self._num_writes = 0
        self._being_written: Collection[str] = ()
        self._wake = asyncio.Event()
        self._later: asyncio.TimerHandle | None = None
        self._writer: asyncio.Task[None] | None = None
        self._is_closing = False

    def start(self) -> None:
        """Start the writer."""
        self._writer = asyncio.create_task(self._write_groups(), name="job-writer")

    async def close(self) -> None:
        """Commit what is pending, and end the writer."""
        self._is_closing = True
        self._wake.set()
        if self._writer is not None:
            await self._writer

    @property
    def has_broken(self) -> bool:
        """True if the writer has ended though it was not closed."""
        return self._writer is not None and self._writer.done() and not self._is_closing

    def insert(self, job: Job) -> asyncio.Future[None]:
        """Add a new job to the next commit. The future is done when it is on disk, or fails if it is not."""
        self._group.new[job.id] = job
        inserted = self._group.inserted[job.id] = asyncio.get_running_loop().create_future()
        self._wake.set()
        return inserted

    def change(self, job: Job, *writes: Write) -> asyncio.Future[None]:
        """Add a changed job and other writes to the next commit. The future is done when all of it is on disk.

        It fails with ChangeUnwritable if the change can never be written; nothing of it is on disk then.
        """
        self._group.changed[job.id] = job
        if writes:
            self._group.writes.setdefault(job.id, []).extend(writes)
        return self._waiting_in(self._group.written, job.id)

    def change_soon(self, job: Job) -> None:
        """Add a changed job to the next commit, within `LAZY_SECONDS`."""
        self._group.changed[job.id] = job
        self._wake_within(LAZY_SECONDS)

    async def settle(self, job: Job) -> None:
        """Wait until the current state of the job is on disk, or the disk has refused it."""
        if job.id in self._group.changed or job.id in self._group.new or job.id in self._being_written:
            with contextlib.suppress(StateUnusable):
                await asyncio.shield(self._waiting_in(self._group.tried, job.id))

    async def write(self, *writes: Write) -> None:
        """Write these in one transaction and wait until they are on disk."""
        self._num_writes += 1
        owner = f"#{self._num_writes}"  # not a valid job id
        self._group.writes[owner] = list(writes)
        await asyncio.shield(self._waiting_in(self._group.written, owner))

    def retry_soon(self) -> None:
        """Ask the database within `RETRY_SECONDS` whether it can be used again, also where nothing is to be written."""
        self._wake_within(RETRY_SECONDS)

    def _waiting_in(self, held: dict[str, list[asyncio.Future[None]]], owner: str) -> asyncio.Future[None]:
        future = asyncio.get_running_loop().create_future()
        held.setdefault(owner, []).append(future)
        self._wake.set()
        return future

    def _wake_within(self, seconds: float) -> None:
        if self._later is None:
            self._later = asyncio.get_running_loop().call_later(seconds, self._wake_now)

    def _wake_now(self) -> None:
        self._later = None
        self._wake.set()

    async def _write_groups(self) -> None:
        while True:
            is_last = self._is_closing  # changes gathered during a commit get a commit of their own, also after `close`
            if not is_last:
                await self._wake.wait()
            self._wake.clear()
            group, self._group = self._group, CommitGroup()
            self._being_written = group.changed.keys() | group.new.keys()
            await self._write_group(group)
            self._being_written = ()
            if is_last:
                return

    async def _write_group(self, group: CommitGroup) -> None:
        try:
            rows = group.rows()
            was_reached = await self._database.call(lambda: self.commit(rows))
        except (sa.exc.OperationalError, StateUnusable) as error:
            reason = self._database.note_failure(error)
            log.error("commit failed", reason=reason, retry_in_seconds=RETRY_SECONDS)
            self._refuse(group, StateUnusable(f"The job database cannot be written: {reason}"))
        except sa.exc.DatabaseError as error:
            damage = self._database.note_damage(error)
            if damage is not None:
                self._refuse(group, damage)
            else:
                await self._write_parts(group, error)
        except Exception as error:  # noqa: BLE001 - the commit: it is raised to all who wait for it
            await self._write_parts(group, error)
        else:
            for owner in group.owners if self._failures else ():
                self._failures.pop(owner, None)
            if was_reached:
                self._database.note_success()
            group.settle()
            self._on_committed()

    async def _write_parts(self, group: CommitGroup, error: Exception) -> None:
        """Write the parts of a group by themselves: an unwritable change must not fail the others."""
        parts = group.parts()
        if len(parts) > 1:
            for part in parts:
                await self._write_group(part)
        else:
            self._fail(group, group.owners[0] if parts else "", error)

    def _refuse(self, group: CommitGroup, refusal: Exception) -> None:
        """Fail the insertions; changes are kept for a later commit, if there is one."""
        if not self._is_closing:
            self._group.merge(group)
            self.retry_soon()
        group.settle(refusal)

    def _fail(self, part: CommitGroup, owner: str, error: Exception) -> None:
        """Retry one owner's part that failed for a reason other than the disk, up to a limit of tries."""
        self._failures[owner] += 1
        num_tries = self._failures[owner]
        is_over = num_tries >= MAX_TRIES or self._is_closing or bool(part.new)
        log.error("change not written", request_id=owner, num_tries=num_tries, is_over=is_over, exc_info=error)
        if not is_over:
            self._refuse(part, error)
            return
        del self._failures[owner]
        reason = f"The job database cannot take this: {type(error).__name__}"
        part.settle(error if part.new else ChangeUnwritable(reason))

    # on the thread

    def commit(self, rows: Rows) -> bool:
        """Write rows in one transaction. Return False if there were none and nobody asked for the database.

        A read that failed just before may not have been noted yet: only an answer ends its problem.
        """
        if rows.is_empty:
            if not self._database.reason:
                return False
            if self._database.is_remote:
                self._database.connected().execute(sa.text("SELECT 1"))
                return True
            rows = replace(rows, writes=[(FACT_UPSERT, {"name": WRITTEN_FACT, "value": str(time.time_ns())})])
        try:
            self.commit_all(self._database.connected(), rows)
            return True
        except sa.exc.DBAPIError:
            self._database.refuse(str(row["id"]) for row in rows.new)  # the server may have them all the same
            raise

    def commit_all(self, connection: sa.Connection, rows: Rows) -> None:
        """Write rows in one transaction."""
        with connection.begin():
            if rows.new:
                connection.execute(_INSERT_JOB, rows.new)
            if rows.changed:
                connection.execute(_UPDATE_JOB, rows.changed)
            for statement, parameters in rows.writes:
                connection.execute(statement, dict(parameters))
