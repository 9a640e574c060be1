"""JobStore: the only owner of jobs, in memory while they are live and always on disk, or in PostgreSQL.

One writer task commits in groups: changes saved during a commit are part of the next one. An inserted job is on disk
when `insert` returns. `save` marks a job changed and returns a future of the commit, so that only callers that need
to wait do. If the disk refuses a commit (because it is full, for example), or the server is unreachable, new jobs are
refused, and every change is kept and written as soon as possible. A change that fails for a reason of its own does
not block the others. The state directory has mode 0700 and is held with an exclusive file lock.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import sqlalchemy as sa
import structlog

from worker.errors import DatabaseUnreachable, StateTakenOver, StateUnusable
from worker.settings.priority import DEFAULT_PRIORITY_STEP_SECONDS, turn_ms_of
from worker.storage.database import FACT_UPSERT, FACTS, JOBS, WEBHOOKS, changing_row, job_of, storable, whole_row
from worker.storage.database_damage import WAY_OUT, damage_of, damaged
from worker.storage.erasure import TRUNCATE_SECONDS, Erasure
from worker.storage.job import Job, Stage
from worker.storage.job_database import JobDatabase, SqliteDatabase
from worker.storage.job_list import Cursor, JobFilter, ListedJob, read_page
from worker.storage.state_directory import StateDirectory
from worker.storage.webhook_rows import WebhookRow, WebhookState, Write, is_due, webhook_update

DATABASE = "darkroom.db"
FINISHED_IN_MEMORY = 200
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


_DELETE_JOB = sa.delete(JOBS).where(
    JOBS.c.id == sa.bindparam("gone_id"), JOBS.c.queued_ms == sa.bindparam("gone_queued_ms")
)
_DELETE_ENDED = _DELETE_JOB.where(JOBS.c.finished_ms.is_not(None))
_DELETE_WEBHOOKS = sa.delete(WEBHOOKS).where(WEBHOOKS.c.job_id == sa.bindparam("gone_id"))
_DELETE_DELIVERED = sa.delete(WEBHOOKS).where(
    WEBHOOKS.c.job_id == sa.bindparam("gone_id"), WEBHOOKS.c.state == WebhookState.DELIVERED.value
)


class ChangeUnwritable(StateUnusable):
    """A change of one job that cannot be written independently of the disk; others of the same commit can."""


@dataclass(slots=True)
class _Group:
    """The content of the next commit and its futures.

    Insertions and changes wait for their write, other futures for the attempt. Every write and every future has an
    owner: the id of a job, or a generated name for writes that belong to no job.
    """

    new: dict[str, Job] = field(default_factory=dict)
    changed: dict[str, Job] = field(default_factory=dict)
    writes: dict[str, list[Write]] = field(default_factory=dict)
    inserted: dict[str, asyncio.Future[None]] = field(default_factory=dict)
    written: dict[str, list[asyncio.Future[None]]] = field(default_factory=dict)
    tried: dict[str, list[asyncio.Future[None]]] = field(default_factory=dict)

    def merge(self, refused: _Group) -> None:
        """Prepend the changes of a refused commit to those gathered since."""
        self.changed = {**refused.changed, **self.changed}
        self.writes = _joined(refused.writes, self.writes)
        self.written = _joined(refused.written, self.written)
        refused.changed, refused.writes, refused.written = {}, {}, {}

    @property
    def owners(self) -> list[str]:
        return list(dict.fromkeys(owner for held in self._fields() for owner in held))

    def parts(self) -> list[_Group]:
        """Split the group into one group for each owner."""
        return [
            _Group(*({owner: held[owner]} if owner in held else {} for held in self._fields())) for owner in self.owners
        ]

    def _fields(self) -> tuple[dict[str, Any], ...]:
        return self.new, self.changed, self.writes, self.inserted, self.written, self.tried

    def settle(self, refusal: Exception | None = None) -> None:
        """Resolve all futures, with an exception if there is a refusal."""
        waiting = (future for held in (*self.written.values(), *self.tried.values()) for future in held)
        for future in (*self.inserted.values(), *waiting):
            if future.done():
                continue
            if refusal is None:
                future.set_result(None)
            else:
                future.set_exception(refusal)
                future.exception()  # marks the exception as retrieved if no task awaits the future


def _joined(first: Mapping[str, list[Any]], second: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
    return {owner: [*first.get(owner, ()), *second.get(owner, ())] for owner in (*first, *second)}


class JobStore:
    """Jobs on disk and in memory. Use as `await store.open()` ... `await store.close()`.

    `jobs` contains every job that has not ended. `on_taken_over` is called when another worker has taken the database.
    `held` is the directory's lock if this process has it already.
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
        self._priority_step_ms = round(priority_step_seconds * 1000)
        self._latest_ms = 0
        self._finished: OrderedDict[str, Job] = OrderedDict()
        self._held = held or StateDirectory(directory)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="job-database")
        self._database = database or SqliteDatabase(directory / DATABASE)
        self._on_taken_over = on_taken_over
        self._is_open = False
        self._problem = ""
        self._refused: set[str] = set()  # insertions reported as failed; used on the thread
        self._group = _Group()
        self._erasure = Erasure()
        self._truncation: asyncio.TimerHandle | None = None
        self._truncating: asyncio.Task[None] | None = None
        self._failures: Counter[str] = Counter()
        self._num_writes = 0
        self._being_written: Collection[str] = ()
        self._wake = asyncio.Event()
        self._writer: asyncio.Task[None] | None = None
        self._next_number = 1
        self._later: asyncio.TimerHandle | None = None
        self._is_closing = False

    def take_directory(self) -> None:
        """Lock the directory for this process. Raises StateUnusable naming the process that holds it. Blocking."""
        if not self._held.is_held:
            self._held.take()
        try:
            self._database.check()
        except StateUnusable:
            self._held.release()
            raise

    async def open(self) -> None:
        """Lock the directory, unless that is done, and load the jobs that have not ended. Raises StateUnusable."""
        if not self._held.is_held:
            await asyncio.to_thread(self.take_directory)
        await self._in_thread(self._load)
        self._writer = asyncio.create_task(self._write_groups(), name="job-writer")

    async def close(self) -> None:
        """Commit pending changes and release the directory."""
        self._is_closing = True
        self._wake.set()
        if self._writer is not None:
            await self._writer
        if self._truncation is not None:
            self._truncation.cancel()
        await self._truncated()
        await self._in_thread(self._disconnect)
        self._thread.shutdown()
        self._held.release()

    @property
    def problem(self) -> str:
        """The reason why the database cannot be used, as a sentence; empty if there is none."""
        if not self._problem:
            return ""
        return f"The job database cannot be {'reached' if self.is_remote else 'written'}: {self._problem}"

    @property
    def is_remote(self) -> bool:
        """True if the jobs are at a database server."""
        return self._database.is_remote

    def report(self) -> dict[str, object] | None:
        """Return the state of the connection to a database server, for `/health`; None for a file."""
        if not self._database.is_remote:
            return None
        state = {"state": "unreachable", "reason": self._problem} if self._problem else {"state": "connected"}
        return {"database": self._database.name, **state}

    @property
    def jobs_directory(self) -> Path:
        return self.directory / "jobs"

    def job_directory(self, job_id: str) -> Path:
        return self.jobs_directory / job_id

    def take_number(self) -> int:
        """Return the next number in the order of admission."""
        number = self._next_number
        self._next_number += 1
        return number

    def turn_ms(self, at_ms: int, priority: int) -> int:
        """Return the turn of a job that arrives at this time.

        If the clock was set back, the job still comes after earlier ones.
        """
        return turn_ms_of(max(at_ms, self._latest_ms), priority, self._priority_step_ms)

    def _give_turn(self, job: Job) -> None:
        usual, earlier = self.turn_ms(job.times.queued_at_ms, job.request.priority), job.request.deadline_turn_ms
        job.turn_ms = usual if earlier is None else min(usual, earlier)
        self._latest_ms = max(self._latest_ms, job.times.queued_at_ms)

    def insert(self, job: Job) -> asyncio.Task[None]:
        """Add a job, which counts at once and is on disk when the task is done. If the task fails the job is removed.

        The task raises StateUnusable, or the error of this job if others could be written.
        """
        self._give_turn(job)
        self._erasure.begin(job)
        self.jobs[job.id] = job
        self._group.new[job.id] = job
        inserted = self._group.inserted[job.id] = asyncio.get_running_loop().create_future()
        self._wake.set()
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
        self._group.changed[job.id] = job
        if job.state.is_terminal:
            writes = (*writes, *self._erasure.end(job))
        if writes:
            self._group.writes.setdefault(job.id, []).extend(writes)
        if job.state.is_terminal:
            self.jobs.pop(job.id, None)
            self._remember(job)
        return self._written(job.id)

    def save_soon(self, job: Job) -> None:
        """Mark a job changed; it is on disk with the next commit, within `LAZY_SECONDS`. It has no future to await."""
        self._group.changed[job.id] = job
        self._wake_within(LAZY_SECONDS)

    async def settle(self, job: Job) -> None:
        """Wait until the current state of the job is on disk, so that a crash does not revert what is shown now.

        A disk that refuses writes does not block this.
        """
        if job.id in self._group.changed or job.id in self._group.new or job.id in self._being_written:
            with contextlib.suppress(StateUnusable):
                await asyncio.shield(self._waiting_in(self._group.tried, job.id))

    async def find(self, job_id: str) -> Job | None:
        """Return a job by id, including ended ones until they expire, or None."""
        job = self.jobs.get(job_id) or self._finished.get(job_id)
        if job is not None:
            return job
        stored: Job | None = await self._read(lambda: self._read_job(job_id))
        live = self.jobs.get(job_id) or self._finished.get(job_id)  # it may have been added or have ended meanwhile
        if live is None and stored is not None:
            self._remember(stored)
        return live or stored

    def holds(self, job_id: str) -> bool:
        """Return True if a job of this id is live or among the last that have ended."""
        return job_id in self.jobs or job_id in self._finished

    async def due_webhooks(self, now_ms: int, limit: int = 32, but: Collection[str] = ()) -> list[WebhookRow]:
        """Return the oldest due webhooks, except those in `but`."""
        query = (
            sa.select(WEBHOOKS)
            .where(is_due(now_ms), WEBHOOKS.c.id.not_in(list(but)))
            .order_by(WEBHOOKS.c.next_at_ms)
            .limit(limit)
        )
        rows = await self._read(lambda: list(self._connected().execute(query)))
        return [WebhookRow(**row._mapping) for row in rows]

    async def next_webhook_at_ms(self, after_ms: int) -> int | None:
        """Return the time at which the next webhook that is not yet due will be due, or None."""
        query = sa.select(sa.func.min(WEBHOOKS.c.next_at_ms)).where(
            WEBHOOKS.c.state == "pending", WEBHOOKS.c.next_at_ms > after_ms
        )
        result: int | None = await self._read(lambda: self._connected().execute(query).scalar())
        return result

    async def webhook(self, webhook_id: str) -> WebhookRow | None:
        query = sa.select(WEBHOOKS).where(WEBHOOKS.c.id == storable(webhook_id))
        row = await self._read(lambda: self._connected().execute(query).one_or_none())
        return None if row is None else WebhookRow(**row._mapping)

    async def update_webhook(self, row: WebhookRow) -> None:
        """Store the outcome of a try. A delivered webhook loses its secret and the secrets in its URL."""
        if row.state == WebhookState.DELIVERED:
            self._erasure.mark_log()
        await self.write(webhook_update(row))

    async def read(self, query: sa.Select[Any]) -> list[sa.Row[Any]]:
        """Return the rows that are on disk now. Raises DatabaseUnreachable."""
        rows: list[sa.Row[Any]] = await self._read(lambda: list(self._connected().execute(query)))
        return rows

    async def page(self, wanted: JobFilter, after: Cursor | None, limit: int) -> list[ListedJob]:
        """Return the first `limit` jobs on disk that pass a filter, after a position. Raises DatabaseUnreachable."""
        return await read_page(self.read, wanted, after, limit, self._database.listed)

    async def fact(self, name: str) -> object:
        """Return a small stored fact (parsed JSON), or None."""
        query = sa.select(FACTS.c.value).where(FACTS.c.name == name)
        text = await self._read(lambda: self._connected().execute(query).scalar())
        return None if text is None else json.loads(text)

    async def set_fact(self, name: str, value: object) -> None:
        text = json.dumps(value)
        await self.write((FACT_UPSERT, {"name": name, "value": text}))

    async def forget_finished_before(self, time_ms: int) -> list[str]:
        """Remove ended jobs without a pending webhook, and their delivered webhooks; return the ids of the jobs.

        The caller deletes their folders.
        """
        dropped, before_ms = await self._read(lambda: self._kept_days(time_ms))
        pending = sa.select(WEBHOOKS.c.job_id).where(WEBHOOKS.c.state == "pending")
        old = sa.select(JOBS.c.id, JOBS.c.queued_ms).where(JOBS.c.finished_ms < before_ms, JOBS.c.id.not_in(pending))
        rows: list[sa.Row[Any]] = await self._read(lambda: list(self._connected().execute(old)))
        ids = [*dropped, *(row.id for row in rows)]
        for job_id in ids:
            self._finished.pop(job_id, None)
        if rows:
            gone = [{"gone_id": row.id, "gone_queued_ms": row.queued_ms} for row in rows]
            await self.write(*((statement, row) for row in gone for statement in (_DELETE_JOB, _DELETE_DELIVERED)))
        await self._truncate()
        return ids

    def _kept_days(self, time_ms: int) -> tuple[list[str], int]:
        self._connected()
        return self._database.keep_days(int(time.time() * 1000), time_ms)

    async def delete_ended(self, job: Job) -> None:
        """Remove an ended job and all its webhooks. The caller deletes its folder. Raises StateUnusable."""
        self._erasure.mark_log()
        gone = {"gone_id": job.id, "gone_queued_ms": job.times.queued_at_ms}
        await self.write(*((statement, gone) for statement in (_DELETE_ENDED, _DELETE_WEBHOOKS)))
        held = self._finished.get(job.id)
        if held is not None and held.number == job.number:  # else a new job has ended under the id
            del self._finished[job.id]

    def check_integrity(self) -> list[str]:
        """Return the inconsistencies of the internal state, one line each; empty if there are none."""
        wrong = [f"{job.id} has ended and is still held as live" for job in self.jobs.values() if job.state.is_terminal]
        wrong += [f"{job.id} is live and held as ended" for job in self._finished.values() if job.id in self.jobs]
        if self._writer is not None and self._writer.done() and not self._is_closing:
            wrong.append("the writer of the job database has ended")
        wrong += [f"{job.id} has ended and keeps credentials" for job in self._finished.values() if job.credentials]
        return wrong

    # the writer

    def _written(self, owner: str) -> asyncio.Future[None]:
        """Return a future that is done when the owner's part of the next commit is on disk."""
        return self._waiting_in(self._group.written, owner)

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

    async def write(self, *writes: Write) -> None:
        """Write these in one transaction and wait until they are on disk."""
        self._num_writes += 1
        owner = f"#{self._num_writes}"  # not a valid job id
        self._group.writes[owner] = list(writes)
        await asyncio.shield(self._written(owner))

    async def _write_groups(self) -> None:
        while True:
            is_last = self._is_closing  # changes gathered during a commit get a commit of their own, also after `close`
            if not is_last:
                await self._wake.wait()
            self._wake.clear()
            group, self._group = self._group, _Group()
            self._being_written = group.changed.keys() | group.new.keys()
            await self._write_one_group(group)
            self._being_written = ()
            if is_last:
                return

    async def _write_one_group(self, group: _Group) -> None:
        try:
            new = [whole_row(job) for job in group.new.values()]
            changed = [
                {"job_id": id_, "job_queued_ms": job.times.queued_at_ms, **changing_row(job)}
                for id_, job in group.changed.items()
                if id_ not in group.new
            ]
            writes = [write for owned in group.writes.values() for write in owned]
            was_reached = await self._in_thread(lambda: self._commit(new, changed, writes))
        except (sa.exc.OperationalError, StateUnusable) as error:
            reason = self._note_failure(error)
            log.error("commit failed", reason=reason, retry_in_seconds=RETRY_SECONDS)
            self._refuse(group, StateUnusable(f"The job database cannot be written: {reason}"))
        except sa.exc.DatabaseError as error:
            damage = self._damage(error)
            if damage is not None:
                self._problem = damage_of(error) or ""
                self._refuse(group, damage)
            else:
                await self._write_parts(group, error)
        except Exception as error:  # noqa: BLE001 - the commit: it is raised to all who wait for it
            await self._write_parts(group, error)
        else:
            for owner in group.owners if self._failures else ():
                self._failures.pop(owner, None)
            if self._problem and was_reached:
                log.info("database connected" if self.is_remote else "database written again")
                self._problem = ""
            group.settle()
            self._truncate_soon()

    async def _write_parts(self, group: _Group, error: Exception) -> None:
        """Write the parts of a group by themselves: an unwritable change must not fail the others."""
        parts = group.parts()
        if len(parts) > 1:
            for part in parts:
                await self._write_one_group(part)
        else:
            self._fail(group, group.owners[0] if parts else "", error)

    def _refuse(self, group: _Group, refusal: Exception) -> None:
        """Fail the insertions; changes are kept for a later commit, if there is one."""
        if not self._is_closing:
            self._group.merge(group)
            self._wake_within(RETRY_SECONDS)
        group.settle(refusal)

    def _fail(self, part: _Group, owner: str, error: Exception) -> None:
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

    def _commit(self, new: list[dict[str, object]], changed: list[dict[str, object]], writes: list[Write]) -> bool:
        """Return False if there was nothing to write and nobody asked whether the database is there.

        A read that failed just before may not have been noted yet: only an answer ends its problem.
        """
        if not (new or changed or writes):
            if not self._problem:
                return False
            if self.is_remote:
                self._connected().execute(sa.text("SELECT 1"))
                return True
            writes = [(FACT_UPSERT, {"name": WRITTEN_FACT, "value": str(time.time_ns())})]
        try:
            self._commit_all(self._connected(), new, changed, writes)
            return True
        except sa.exc.DBAPIError:
            if self._database.is_remote:
                self._refused |= {str(row["id"]) for row in new}  # the server may have them all the same
            raise

    def _commit_all(
        self,
        connection: sa.Connection,
        new: list[dict[str, object]],
        changed: list[dict[str, object]],
        writes: list[Write],
    ) -> None:
        with connection.begin():
            if new:
                connection.execute(_INSERT_JOB, new)
            if changed:
                connection.execute(_UPDATE_JOB, changed)
            for statement, parameters in writes:
                connection.execute(statement, dict(parameters))

    # on the thread

    async def _in_thread(self, function: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function)

    async def _read(self, function: Callable[[], Any]) -> Any:
        """Call a function that reads, on the thread. Raises DatabaseUnreachable."""
        try:
            return await self._in_thread(function)
        except (sa.exc.DatabaseError, UnicodeDecodeError, StateUnusable) as error:
            if not self._database.is_remote and not isinstance(error, StateUnusable):
                raise self._damage(error) or error from None
            if isinstance(error, UnicodeDecodeError) or not (self._database.is_remote and self._is_open):
                raise
            if not isinstance(error, sa.exc.OperationalError | StateUnusable):
                raise
            reason = self._note_failure(error)
            self._wake_within(RETRY_SECONDS)
            raise DatabaseUnreachable(f"The job database cannot be read: {reason}", retry_after_seconds=5) from None

    def _damage(self, error: Exception) -> StateUnusable | None:
        """Return the error of a damaged file, logged once, None where the file is not damaged."""
        what = None if self.is_remote else damage_of(error)
        if what is None:
            return None
        if what != self._problem:
            log.critical("job database damaged", file=self._database.name, reason=what, remedy=WAY_OUT)
        return damaged(Path(self._database.name), what)

    def _note_failure(self, error: sa.exc.OperationalError | StateUnusable) -> str:
        """Return the reason of a failure, and record that a server is unreachable."""
        reason = error.message if isinstance(error, StateUnusable) else str(error.orig).strip().partition("\n")[0]
        if self.is_remote and not self._problem:
            log.error("database unreachable", reason=reason)
        self._problem = reason
        if isinstance(error, StateTakenOver):
            self._on_taken_over()
        return reason

    def _connected(self) -> sa.Connection:
        if not self._is_open:
            raise StateUnusable("the job database is not open")
        connection = self._database.connection(self._refused)
        if connection.in_transaction():
            connection.rollback()  # an earlier read left a transaction open, which would show old data
        return connection

    def _truncate_soon(self) -> None:
        """Schedule a checkpoint of the write-ahead log, unless nothing in it was erased or one is already due."""
        if self._erasure.log_holds_secrets and self._truncation is None and not self._is_closing:
            self._truncation = asyncio.get_running_loop().call_later(TRUNCATE_SECONDS, self._begin_truncation)

    def _begin_truncation(self) -> None:
        self._truncation = None
        self._erasure.log_emptied()
        self._truncating = asyncio.create_task(self._truncate(), name="erase-from-log")

    async def _truncate(self) -> None:
        try:
            await self._in_thread(self._empty_log)
        except sa.exc.OperationalError as error:
            log.error("write-ahead log not truncated", reason=str(error.orig), retry_in_seconds=RETRY_SECONDS)
            self._erasure.mark_log()  # retried after the next commit, and by the expiry

    async def _truncated(self) -> None:
        if self._truncating is not None:
            await self._truncating

    def _empty_log(self) -> None:
        """Remove erased secrets from the database's write-ahead log."""
        if not self._database.is_remote:
            self._connected()
        self._database.forget_erased()

    def _disconnect(self) -> None:
        self._is_open = False
        self._database.close()

    def _load(self) -> None:
        with self._database.readable():
            self._load_jobs(self._database.connection(self._refused))
        self._is_open = True
        self._empty_log()  # the log of a killed worker may contain erased secrets

    def _load_jobs(self, connection: sa.Connection) -> None:
        self._next_number = (connection.execute(sa.select(sa.func.max(JOBS.c.number))).scalar() or 0) + 1
        unfinished = sa.select(JOBS).where(JOBS.c.finished_ms.is_(None)).order_by(JOBS.c.number)
        for row in connection.execute(unfinished):
            job = job_of(row)
            job.is_recovered = True
            job.needs_less_memory = job.stage is Stage.LOW_MEMORY_RETRY
            self._erasure.begin(job)
            self._give_turn(job)
            self.jobs[job.id] = job
        connection.rollback()

    def _read_job(self, job_id: str) -> Job | None:
        connection = self._connected()
        is_job = self._database.is_job(storable(job_id))
        row = connection.execute(sa.select(JOBS).where(is_job)).one_or_none()
        return None if row is None else job_of(row)

    def _remember(self, job: Job) -> None:
        job.prompt = {}  # it stays on disk; inline pictures would fill the memory
        self._finished[job.id] = job
        while len(self._finished) > FINISHED_IN_MEMORY:
            self._finished.popitem(last=False)
