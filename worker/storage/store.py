"""JobStore: the only owner of jobs, in memory while they are live and always on disk, or in PostgreSQL.

An inserted job is on disk when `insert` returns. `save` marks a job changed and returns a future of the commit, so
that only callers that need to wait do. If the disk refuses a commit (because it is full, for example), or the server
is unreachable, new jobs are refused, and every change is kept (`group_commit.py`). The state directory has mode 0700
and is held with an exclusive file lock.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from darkroom.worker.errors import StateUnusable
from darkroom.worker.settings.priority import DEFAULT_PRIORITY_STEP_SECONDS
from darkroom.worker.storage.admission_order import AdmissionOrder
from darkroom.worker.storage.database import JOBS, WEBHOOKS, job_of, storable
from darkroom.worker.storage.database_thread import DatabaseThread
from darkroom.worker.storage.erasure import Erasure
from darkroom.worker.storage.fact_store import FactStore
from darkroom.worker.storage.group_commit import GroupCommit
from darkroom.worker.storage.job import Job, Stage
from darkroom.worker.storage.job_database import JobDatabase, SqliteDatabase
from darkroom.worker.storage.job_list import (
    Cursor,
    JobDetails,
    JobFilter,
    ListedJob,
    read_details,
    read_page,
)
from darkroom.worker.storage.job_search import search_page
from darkroom.worker.storage.log_truncation import LogTruncation
from darkroom.worker.storage.state_directory import StateDirectory
from darkroom.worker.storage.webhook_rows import WebhookState, Write
from darkroom.worker.storage.webhook_store import WebhookStore

DATABASE = "darkroom.db"
FINISHED_IN_MEMORY = 200

_DELETE_JOB = sa.delete(JOBS).where(
    JOBS.c.id == sa.bindparam("gone_id"), JOBS.c.queued_ms == sa.bindparam("gone_queued_ms")
)
_DELETE_ENDED = _DELETE_JOB.where(JOBS.c.finished_ms.is_not(None))
_DELETE_WEBHOOKS = sa.delete(WEBHOOKS).where(WEBHOOKS.c.job_id == sa.bindparam("gone_id"))
_DELETE_DELIVERED = sa.delete(WEBHOOKS).where(
    WEBHOOKS.c.job_id == sa.bindparam("gone_id"), WEBHOOKS.c.state == WebhookState.DELIVERED.value
)


class JobStore:
    """Jobs on disk and in memory. Use as `await store.open()` ... `await store.close()`.

    `jobs` contains every job that has not ended. `webhooks` and `facts` are stored in the same database, `database` is
    the connection to it. `on_taken_over` is called when another worker has taken the database. `held` is the
    directory's lock if this process has it already.
    """

    def __init__(
        self,
        directory: Path,
        priority_step_seconds: float = DEFAULT_PRIORITY_STEP_SECONDS,
        database: JobDatabase | None = None,
        on_taken_over: Callable[[], None] = lambda: None,
        held: StateDirectory | None = None,
    ) -> None:
        self.directory = directory
        self.jobs: dict[str, Job] = {}
        self._finished: OrderedDict[str, Job] = OrderedDict()
        self._order = AdmissionOrder(priority_step_seconds)
        self._held = held or StateDirectory(directory)
        self.database = DatabaseThread(
            database or SqliteDatabase(directory / DATABASE), on_taken_over, lambda: self._commits.retry_soon()
        )
        self._log = LogTruncation(self.database)
        self._commits = GroupCommit(self.database, self._log.truncate_soon)
        self._erasure = Erasure(self._log.mark)
        self.webhooks = WebhookStore(self.database, self._commits, self._log.mark)
        self.facts = FactStore(self.database, self._commits)

    def take_directory(self) -> None:
        """Lock the directory for this process. Raises StateUnusable naming the process that holds it. Blocking."""
        if not self._held.is_held:
            self._held.take()
        try:
            self.database.check()
        except StateUnusable:
            self._held.release()
            raise

    async def open(self) -> None:
        """Lock the directory, unless that is done, and load the jobs that have not ended. Raises StateUnusable."""
        if not self._held.is_held:
            await asyncio.to_thread(self.take_directory)
        await self.database.call(lambda: self.database.load(self._load_jobs))
        self._commits.start()

    async def close(self) -> None:
        """Commit pending changes and release the directory."""
        await self._commits.close()
        await self._log.close()
        await self.database.close()
        self._held.release()

    @property
    def jobs_directory(self) -> Path:
        return self.directory / "jobs"

    def job_directory(self, job_id: str) -> Path:
        return self.jobs_directory / job_id

    def take_number(self) -> int:
        """Return the next number in the order of admission."""
        return self._order.take_number()

    def turn_ms(self, at_ms: int, priority: int) -> int:
        """Return the turn of a job that arrives at this time."""
        return self._order.turn_ms(at_ms, priority)

    def insert(self, job: Job) -> asyncio.Task[None]:
        """Add a job, which counts at once and is on disk when the task is done. If the task fails the job is removed.

        The task raises StateUnusable, or the error of this job if others could be written.
        """
        self._order.give_turn(job)
        self._erasure.begin(job)
        self.jobs[job.id] = job
        inserted = self._commits.insert(job)
        return asyncio.create_task(self._await_insertion(job, inserted), name=f"insert-{job.id}")

    async def _await_insertion(self, job: Job, inserted: asyncio.Future[None]) -> None:
        try:
            await asyncio.shield(inserted)
        except Exception:
            self.jobs.pop(job.id, None)
            self._erasure.end(job)
            raise

    def save(self, job: Job, *writes: Write) -> asyncio.Future[None]:
        """Mark a job changed; `writes` go into the same transaction. The future is done when all of it is on disk.

        It fails with ChangeUnwritable if the change can never be written; nothing of it is on disk then.
        """
        if not job.state.is_terminal:
            return self._commits.change(job, *writes)
        written = self._commits.change(job, *writes, *self._erasure.end(job))
        self.jobs.pop(job.id, None)
        self._remember(job)
        return written

    def save_soon(self, job: Job) -> None:
        """Mark a job changed; it is on disk with the next commit, in a moment. It has no future to await."""
        self._commits.change_soon(job)

    async def settle(self, job: Job) -> None:
        """Wait until the current state of the job is on disk, so that a crash does not revert what is shown now.

        A disk that refuses writes does not block this.
        """
        await self._commits.settle(job)

    async def find(self, job_id: str) -> Job | None:
        """Return a job by id, including ended ones until they expire, or None."""
        job = self.jobs.get(job_id) or self._finished.get(job_id)
        if job is not None:
            return job
        stored = await self.stored(job_id)
        live = self.jobs.get(job_id) or self._finished.get(job_id)  # it may have been added or have ended meanwhile
        if live is None and stored is not None:
            self._remember(stored)
        return live or stored

    async def stored(self, job_id: str) -> Job | None:
        """Return a job as it is on disk, or None."""
        return await self.database.read(lambda: self._read_job(job_id))

    def holds(self, job_id: str) -> bool:
        """Return True if a job of this id is live or among the last that have ended."""
        return job_id in self.jobs or job_id in self._finished

    async def read(self, query: sa.Select[Any]) -> list[sa.Row[Any]]:
        """Return the rows that are on disk now. Raises DatabaseUnreachable."""
        return await self.database.rows(query)

    async def write(self, *writes: Write) -> None:
        """Write these in one transaction and wait until they are on disk."""
        await self._commits.write(*writes)

    async def page(self, wanted: JobFilter, after: Cursor | None, limit: int) -> list[ListedJob]:
        """Return the first `limit` jobs on disk that pass a filter, after a position. Raises DatabaseUnreachable."""
        return await read_page(self.read, wanted, after, limit, self.database.listed)

    async def search(
        self, wanted: JobFilter, text: str, after: Cursor | None, limit: int, *, in_stored_workflows: bool
    ) -> tuple[list[ListedJob], Cursor | None]:
        """Return jobs on disk whose prompts contain a text, and where to look on. Raises DatabaseUnreachable."""
        find = partial(search_page, in_stored_workflows=in_stored_workflows, listed=self.database.listed)
        return await find(self.read, wanted, text, after, limit)

    async def details(self, jobs: Sequence[ListedJob]) -> dict[str, JobDetails]:
        """Return the details of listed jobs by their ids. Raises DatabaseUnreachable."""
        return await read_details(self.read, jobs)

    async def forget_finished_before(self, time_ms: int) -> list[str]:
        """Remove ended jobs without a pending webhook, and their delivered webhooks; return the ids of the jobs.

        The caller deletes their folders.
        """
        dropped, before_ms = await self.database.read(lambda: self.database.keep_days(time_ms))
        pending = sa.select(WEBHOOKS.c.job_id).where(WEBHOOKS.c.state == "pending")
        old = sa.select(JOBS.c.id, JOBS.c.queued_ms).where(JOBS.c.finished_ms < before_ms, JOBS.c.id.not_in(pending))
        rows = await self.read(old)
        ids = [*dropped, *(row.id for row in rows)]
        for job_id in ids:
            self._finished.pop(job_id, None)
        if rows:
            gone = [{"gone_id": row.id, "gone_queued_ms": row.queued_ms} for row in rows]
            await self.write(*((statement, row) for row in gone for statement in (_DELETE_JOB, _DELETE_DELIVERED)))
        await self._log.truncate()
        return ids

    async def delete_ended(self, job: Job) -> None:
        """Remove an ended job and all its webhooks. The caller deletes its folder. Raises StateUnusable."""
        self._log.mark()
        gone = {"gone_id": job.id, "gone_queued_ms": job.times.queued_at_ms}
        await self.write(*((statement, gone) for statement in (_DELETE_ENDED, _DELETE_WEBHOOKS)))
        held = self._finished.get(job.id)
        if held is not None and held.number == job.number:  # else a new job has ended under the id
            del self._finished[job.id]

    def check_integrity(self) -> list[str]:
        """Return the inconsistencies of the internal state, one line each; empty if there are none."""
        wrong = [f"{job.id} has ended and is still held as live" for job in self.jobs.values() if job.state.is_terminal]
        wrong += [f"{job.id} is live and held as ended" for job in self._finished.values() if job.id in self.jobs]
        if self._commits.has_broken:
            wrong.append("the writer of the job database has ended")
        wrong += [f"{job.id} has ended and keeps credentials" for job in self._finished.values() if job.credentials]
        return wrong

    def _remember(self, job: Job) -> None:
        job.prompt = {}  # it stays on disk; inline images would fill the memory
        self._finished[job.id] = job
        while len(self._finished) > FINISHED_IN_MEMORY:
            self._finished.popitem(last=False)

    # on the thread

    def _load_jobs(self, connection: sa.Connection) -> None:
        self._order.begin_after(connection.execute(sa.select(sa.func.max(JOBS.c.number))).scalar() or 0)
        unfinished = sa.select(JOBS).where(JOBS.c.finished_ms.is_(None)).order_by(JOBS.c.number)
        for row in connection.execute(unfinished):
            job = job_of(row)
            job.is_recovered = True
            job.needs_less_memory = job.stage is Stage.LOW_MEMORY_RETRY
            self._erasure.begin(job)
            self._order.give_turn(job)
            self.jobs[job.id] = job
        connection.rollback()

    def _read_job(self, job_id: str) -> Job | None:
        connection = self.database.connected()
        is_job = self.database.is_job(storable(job_id))
        row = connection.execute(sa.select(JOBS).where(is_job)).one_or_none()
        return None if row is None else job_of(row)
