"""JobRecords: the gateway's jobs in PostgreSQL, shared by all its replicas. The only state of a gateway.

A job is stored before it is sent to the broker, its body with it until it has ended. Stage `queued` means stored, not
yet sent. Calls run on threads, each with a connection of the pool.
"""

from __future__ import annotations

import asyncio
import json
import re
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Final, TypeVar

import sqlalchemy as sa

from darkroom.worker.errors import DatabaseUnreachable, LimitReached
from darkroom.worker.gateway.result_memory import LARGE_BYTES
from darkroom.worker.json.values import object_at
from darkroom.worker.settings.database import DatabaseConfig
from darkroom.worker.storage.database import JOB_INDEX, JOBS, changing_row, is_row_of, job_of, storable, whole_row
from darkroom.worker.storage.job import SPLIT, Job, JobFailure, JobState, JobTimes, Stage
from darkroom.worker.storage.job_list import Cursor, JobFilter, ListedJob, read_page
from darkroom.worker.storage.job_partitions import keep_days, rows_before_ms
from darkroom.worker.storage.postgres_database import is_job, open_postgres, prepare_schema

POOL_SIZE = 16
SUFFIX = "_gateway"
LATEST_MS: Final = 2**53  # of a time that a worker may give
BROKER_WORD: Final = "gateway-"
HEX: Final = re.compile(r"[0-9a-f]{1,15}")
LIVE = JOB_INDEX.c.finished_ms.is_(None)
LIVE_COUNTS: Final = sa.table("live_counts", sa.column("num", sa.BigInteger))
"""The number of jobs that have not ended, in parts. Triggers keep it."""

FORGOTTEN_AT_ONCE = 1000  # results, in one transaction: few enough that they are found by indexes among a million
LIMIT_SECONDS = 5.0  # until a caller over its limit is to come back
REFUSED_STATUS = 422  # of a refusal without a status: the request was wrong

Answer = TypeVar("Answer")


OUTPUT_BYTES: Final = sa.func.octet_length(JOBS.c.outputs) + sa.func.octet_length(JOBS.c.engine_response)
LEFT_OUT: Final = {"prompt": sa.literal("{}"), **{
    name: sa.case((OUTPUT_BYTES > LARGE_BYTES, empty), else_=JOBS.c[name])
    for name, empty in (("outputs", "[]"), ("engine_response", "{}"))
}}  # fmt: skip
HEAD: Final = (
    *(LEFT_OUT.get(column.name, column).label(column.name) for column in JOBS.c),
    OUTPUT_BYTES.label("output_bytes"),
)
"""Columns of a job without its body and without large outputs."""


@dataclass
class LargeJob(Job):
    """An ended job whose outputs, `output_bytes` as they are stored, are not read yet."""

    output_bytes: int = 0


class JobRecords:
    """Jobs of all callers, as rows. Every method raises DatabaseUnreachable."""

    def __init__(self, config: DatabaseConfig) -> None:
        self._config = config.model_copy(update={"schema_name": f"{config.schema_name}{SUFFIX}"})
        self._engine = open_postgres(self._config, num_connections=POOL_SIZE)
        self._threads = ThreadPoolExecutor(POOL_SIZE, thread_name_prefix="gateway-database")
        self._probe_threads = ThreadPoolExecutor(1, thread_name_prefix="gateway-probes")

    async def open(self) -> None:
        """Create or migrate the tables. Raises StateUnusable."""
        await self._in_thread(lambda: prepare_schema(self._engine, self._config))

    async def close(self) -> None:
        await self._in_thread(self._engine.dispose)
        self._threads.shutdown()
        self._probe_threads.shutdown()

    async def check(self) -> None:
        """Make a round trip to the database, on a thread of its own: others have requests before them."""
        await self._run(lambda connection: connection.execute(sa.text("SELECT 1")), self._probe_threads)

    async def insert(self, job: Job, max_live: int | None = None) -> bool:
        """Store a new job with its body in `prompt`, and give it its number. Returns False if its id is taken.

        `max_live` limits the jobs of its owner that have not ended, over all replicas. Raises LimitReached.
        """
        job.number = _number()
        row = whole_row(job)
        statement = (
            sa.insert(JOBS)
            .from_select(
                list(row),
                sa.select(*(sa.literal(value, JOBS.c[name].type) for name, value in row.items())).where(
                    ~sa.exists().where(JOB_INDEX.c.id == job.id)
                ),
            )
            .returning(JOBS.c.id)
        )  # the number of rows of such an INSERT is not known

        def insert_within(connection: sa.Connection) -> bool:
            if max_live is not None:
                self._check_owner(connection, job, max_live)
            return connection.execute(statement).one_or_none() is not None

        try:
            return await self._run(insert_within, is_large=lambda _is_new: len(str(row["prompt"])) > LARGE_BYTES)
        except sa.exc.IntegrityError:  # inserted by another replica at the same moment
            return False

    def _check_owner(self, connection: sa.Connection, job: Job, max_live: int) -> None:
        """Hold the owner's lock until the transaction ends, and count its jobs. Raises LimitReached."""
        key = f"{self._config.schema_name}:{job.owner}"
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(sa.func.hashtextextended(key, 0))))
        known = sa.select(sa.func.count()).where(JOB_INDEX.c.id == job.id)
        if connection.execute(known).scalar():  # the request came before, perhaps to another replica
            return
        theirs = sa.select(sa.literal(1)).where(LIVE, JOB_INDEX.c.owner == job.owner).limit(max_live).subquery()
        live = connection.execute(sa.select(sa.func.count()).select_from(theirs)).scalar() or 0
        if live >= max_live:
            raise LimitReached("jobs_waiting", live + 1, max_live, retry_after_seconds=LIMIT_SECONDS)

    async def find(self, job_id: str) -> Job | None:
        """Return a job by its id, without its body; a `LargeJob` where its outputs are left out, too."""

        def found(connection: sa.Connection) -> sa.Row[Any] | None:
            return connection.execute(sa.select(*HEAD).where(is_job(connection, storable(job_id)))).one_or_none()

        row = await self._run(found)
        return None if row is None else _head_of(row)

    async def whole(self, job: Job) -> Job | None:
        """Return a job with its body and its outputs, None if it was removed meanwhile."""

        def read(connection: sa.Connection) -> tuple[Job | None, int]:
            row = connection.execute(sa.select(JOBS).where(is_row_of(job))).one_or_none()
            if row is None:
                return None, 0
            return job_of(row), len(row.prompt) + len(row.outputs) + len(row.engine_response)

        found, _ = await self._run(read, is_large=lambda answer: answer[1] > LARGE_BYTES)
        return found

    async def page(self, wanted: JobFilter, after: Cursor | None, limit: int) -> list[ListedJob]:
        """Return the first `limit` jobs that pass a filter, after a position."""
        return await read_page(self._read, wanted, after, limit, JOB_INDEX)

    async def _read(self, query: sa.Select[Any]) -> list[sa.Row[Any]]:
        return await self._run(lambda connection: list(connection.execute(query)))

    async def num_live(self, *, is_probe: bool = False) -> int:
        """Return the number of jobs that have not ended; for a probe on a thread of its own, as `check`."""
        query = sa.select(sa.func.coalesce(sa.func.sum(LIVE_COUNTS.c.num), 0))
        threads = self._probe_threads if is_probe else self._threads
        return await self._run(lambda connection: int(connection.execute(query).scalar() or 0), threads)

    async def num_unsent(self) -> int:
        """Return the number of jobs that are not at the broker."""
        query = sa.select(sa.func.count()).where(LIVE, JOB_INDEX.c.stage == Stage.QUEUED.value)
        return await self._run(
            lambda connection: int(connection.execute(query).scalar() or 0), self._probe_threads
        )  # fmt: skip

    async def unsent(self, before_ms: int, limit: int) -> list[Job]:
        """Return the oldest jobs stored before a time and not yet sent to the broker, without their bodies."""
        is_unsent = sa.and_(LIVE, JOB_INDEX.c.stage == Stage.QUEUED.value, JOB_INDEX.c.queued_ms < before_ms)
        oldest = sa.select(JOB_INDEX.c.id, JOB_INDEX.c.queued_ms).where(is_unsent)
        found = await self._read(oldest.order_by(JOB_INDEX.c.number).limit(limit))
        if not found:
            return []
        times = [row.queued_ms for row in found]  # which name the partitions to look into
        are_they = sa.and_(JOBS.c.id.in_([row.id for row in found]), JOBS.c.queued_ms.between(min(times), max(times)))
        return [_head_of(row) for row in await self._read(sa.select(*HEAD).where(are_they).order_by(JOBS.c.number))]

    async def live_ids(self, after_number: int, limit: int) -> list[tuple[int, str]]:
        """Return number and id of jobs that were sent and have not ended, in their order after a number."""
        query = sa.select(JOB_INDEX.c.number, JOB_INDEX.c.id).where(LIVE, JOB_INDEX.c.number > after_number)
        rows = await self._read(query.order_by(JOB_INDEX.c.number).limit(limit))
        return [(row.number, row.id) for row in rows]

    async def live_among(self, numbers: Sequence[int]) -> list[tuple[int, str]]:
        """Return number and id of those of some jobs that have not ended."""
        query = sa.select(JOB_INDEX.c.number, JOB_INDEX.c.id).where(LIVE, JOB_INDEX.c.number.in_(numbers))
        return [(row.number, row.id) for row in await self._read(query)]

    async def ended_among(self, names: Sequence[str]) -> set[str]:
        """Return those of some jobs, by their ids at the broker, that have ended or are not there."""
        numbers = {number: name for name in names if (number := number_of(name)) is not None}
        live = await self.live_among(list(numbers))
        return set(numbers.values()) - {numbers[number] for number, _ in live}

    async def sent(self, job: Job) -> None:
        """Record that the broker has a job."""
        change = sa.update(JOBS).where(_is_live(job)).values(stage=Stage.WAITING.value)
        await self._run(lambda connection: connection.execute(change))

    async def end(self, job: Job, result: Mapping[str, Any], size_bytes: int = 0) -> Job:
        """Store the result of a job, unless it has one, and erase its body. Returns the job as `find` does."""

        def store(connection: sa.Connection) -> None:
            ended = ended_job(job, result)
            values = {
                **changing_row(ended),
                "request": json.dumps(asdict(ended.request)),
                "prompt": "{}",
                "finished_ms": ended.times.completed_at_ms,
            }
            connection.execute(sa.update(JOBS).where(_is_live(job)).values(values))

        await self._run(store, is_large=lambda _ended: size_bytes > LARGE_BYTES)
        return await self.find(job.id) or replace(ended_job(job, result), outputs=())

    async def delete(self, job: Job) -> None:
        """Remove a job."""
        await self._run(lambda connection: connection.execute(sa.delete(JOBS).where(is_row_of(job))))

    async def forget_finished_before(self, time_ms: int) -> int:
        """Remove jobs that ended before a time; return their number. Partitions of coming days are made with it.

        Days go as a whole where all their jobs are over. Others go in batches, the oldest first: after a long absence
        all at once would take longer than a statement may. Replicas that do this at the same time remove different
        ones.
        """
        now_ms = int(time.time() * 1000)
        total = len(await self._in_thread(lambda: self._kept_days(now_ms, time_ms)))
        columns = JOB_INDEX.c.id, JOB_INDEX.c.queued_ms
        is_over = JOB_INDEX.c.finished_ms < rows_before_ms(now_ms, time_ms)
        oldest = sa.select(*columns).where(is_over).order_by(JOB_INDEX.c.finished_ms).limit(FORGOTTEN_AT_ONCE)
        batch = oldest.with_for_update(skip_locked=True).cte()
        gone = sa.delete(JOBS).where(JOBS.c.id == batch.c.id, JOBS.c.queued_ms == batch.c.queued_ms)
        while num := await self._run(lambda connection: connection.execute(gone).rowcount):
            total += num
        return total

    def _kept_days(self, now_ms: int, before_ms: int) -> list[str]:
        try:
            with self._engine.connect() as connection:
                return keep_days(connection, now_ms, before_ms)
        except sa.exc.OperationalError as error:
            raise _unreachable(error) from None

    async def run(self, function: Callable[[sa.Connection], Answer]) -> Answer:
        """Call a function in a transaction of the gateways' schema."""
        return await self._run(function)

    async def _run(
        self,
        function: Callable[[sa.Connection], Answer],
        threads: ThreadPoolExecutor | None = None,
        *,
        is_large: Callable[[Answer], bool] = lambda _answer: False,
    ) -> Answer:
        """Call a function in a transaction on a thread, again if the pool had a connection of a server that is gone.

        `is_large`: whether a connection with this answer is closed, since its buffers stay as large as the largest row
        that they had.
        """
        try:
            return await self._in_thread(lambda: self._in_transaction(function, is_large), threads)
        except sa.exc.OperationalError as error:
            if not error.connection_invalidated:
                raise _unreachable(error) from None
        try:
            return await self._in_thread(lambda: self._in_transaction(function, is_large), threads)
        except sa.exc.OperationalError as error:
            raise _unreachable(error) from None

    async def _in_thread(self, function: Callable[[], Answer], threads: ThreadPoolExecutor | None = None) -> Answer:
        return await asyncio.get_running_loop().run_in_executor(threads or self._threads, function)

    def _in_transaction(
        self, function: Callable[[sa.Connection], Answer], is_large: Callable[[Answer], bool]
    ) -> Answer:
        with self._engine.connect() as connection:
            with connection.begin():
                answer = function(connection)
            if is_large(answer):
                connection.invalidate()
        return answer


def _head_of(row: sa.Row[Any]) -> Job:
    job = job_of(row)
    if row.output_bytes <= LARGE_BYTES:
        return job
    return LargeJob(**{one.name: getattr(job, one.name) for one in fields(Job)}, output_bytes=row.output_bytes)


def _is_live(job: Job) -> sa.ColumnElement[bool]:
    return sa.and_(is_row_of(job), JOBS.c.finished_ms.is_(None))


def broker_id(number: int) -> str:
    """Return the id of a job at the broker. It is another one when an id is used again for another job."""
    return f"{BROKER_WORD}{number:x}"


def number_of(name: str) -> int | None:
    """Return the number of a job by its id at the broker, None for a job that no gateway has sent."""
    word, digits = name[: len(BROKER_WORD)], name[len(BROKER_WORD) :]
    return int(digits, 16) if word == BROKER_WORD and HEX.fullmatch(digits) else None


def _unreachable(error: sa.exc.OperationalError) -> DatabaseUnreachable:
    reason = str(error.orig).strip().partition("\n")[0]
    return DatabaseUnreachable(f"The job database cannot be reached: {reason}", retry_after_seconds=5)


def _number() -> int:
    """Return a number that no replica has given: the time in microseconds, and chance."""
    return time.time_ns() // 1000 * 1000 + secrets.randbelow(1000)


def ended_job(job: Job, result: Mapping[str, Any]) -> Job:
    """Return a job with the result that a worker sent. Pure but for the clock."""
    timings = result.get("timings") or {}
    known = {name: timings.get(name) for name in JobTimes.__slots__ if name != "queued_at_ms"}
    times = JobTimes(job.times.queued_at_ms, **{name: _whole(value) for name, value in known.items()})
    times.completed_at_ms = times.completed_at_ms or int(time.time() * 1000)
    warnings, engine = tuple(result.get("warnings") or ()), object_at(result, "engine")
    return replace(
        job,
        state=_state(result),
        stage=Stage.DONE,
        seq=job.seq + 1,
        message=storable(str(result.get("message") or "")),
        outputs=tuple(result.get("output") or ()),
        engine_response=result.get("comfyui_response") or {},
        tuning=_tuning_of(result),
        failure=_failure(result),
        times=times,
        request=replace(
            job.request,
            warnings=warnings or job.request.warnings,
            parameters=result.get("parameters") or {},
            engine=storable(str(engine.get("name") or "")),
            engine_reason=storable(str(engine.get("reason") or "")),
        ),
        prompt={},
    )


def _tuning_of(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return tuning and split of a result as a job holds them."""
    split = {} if result.get(SPLIT) is None else {SPLIT: result[SPLIT]}
    return {**(result.get("tuning") or {}), **split}


def _state(result: Mapping[str, Any]) -> JobState:
    try:
        state = JobState(str(result.get("status")))
    except ValueError:
        return JobState.FAILED
    return state if state.is_terminal else JobState.FAILED


def _failure(result: Mapping[str, Any]) -> JobFailure | None:
    error = dict(result.get("error") or {})
    if not error:
        return None
    status = error.pop("status", None)
    code, message = str(error.pop("code", "internal_error")), str(error.pop("message", ""))
    return JobFailure(status if isinstance(status, int) else REFUSED_STATUS, code, message, error)


def _whole(value: object) -> int | None:
    """Return a whole number that a column holds, None for other values."""
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if 0 <= value < LATEST_MS else None
