"""JobRecords: the jobs of all gateways, in their database. The only state of a gateway.

A job is stored before it is sent to the broker, its body with it until it has ended. Stage `queued` means stored, not
yet sent. Where the database is the queue, too, both are one transaction.
"""

from __future__ import annotations

import json
import re
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Final, TypeVar

import sqlalchemy as sa

from darkroom.worker.errors import LimitReached
from darkroom.worker.gateway.database import GatewayDatabase
from darkroom.worker.gateway.result_memory import LARGE_BYTES
from darkroom.worker.json.values import object_at
from darkroom.worker.storage.database import JOBS, changing_row, is_row_of, job_of, storable, whole_row
from darkroom.worker.storage.job import SPLIT, Job, JobFailure, JobState, JobTimes, Stage
from darkroom.worker.storage.job_list import Cursor, JobFilter, ListedJob, read_page
from darkroom.worker.storage.job_partitions import keep_days, rows_before_ms

LATEST_MS: Final = 2**53  # of a time that a worker may give
BROKER_WORD: Final = "gateway-"
HEX: Final = re.compile(r"[0-7]?[0-9a-f]{1,15}")  # of a number with 63 bits
LIVE_COUNTS: Final = sa.table("live_counts", sa.column("num", sa.BigInteger))
"""The number of jobs that have not ended, in parts. Triggers keep it."""

QUEUE_DEPTHS: Final = sa.table("queue_depths", sa.column("num", sa.BigInteger))
"""The number of jobs in the queue of this database, in parts: with SQLite all that have not ended, and settled ones."""

SETTLED: Final = sa.text("SELECT count(*) FROM queue WHERE settled_ms IS NOT NULL").columns(num=sa.BigInteger)
"""The number of cancelled jobs that wait for a worker to send their webhooks."""

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

    def __init__(self, database: GatewayDatabase) -> None:
        self._database = database
        self._listed = database.listed
        self._is_live = self._listed.c.finished_ms.is_(None)

    async def open(self) -> None:
        """Open the database. Raises StateUnusable."""
        await self._database.open()

    async def close(self) -> None:
        """Close the database."""
        await self._database.close()

    async def check(self) -> None:
        """Make a round trip to the database."""
        await self._database.check()

    async def insert(
        self, job: Job, max_live: int | None = None, queued: Callable[[sa.Connection, Job, int], object] | None = None
    ) -> bool:
        """Store a new job with its body in `prompt`, and give it its number. Returns False if its id is taken.

        `max_live` limits the jobs of its owner that have not ended, over all replicas. `queued` adds it, and the length
        of its body, to a queue of the same database, in the same transaction. Raises LimitReached.
        """
        job.number = _number()
        row = whole_row(job)
        length = len(str(row["prompt"]))
        statement = (
            sa.insert(JOBS)
            .from_select(
                list(row),
                sa.select(*(sa.literal(value, JOBS.c[name].type) for name, value in row.items())).where(
                    ~sa.exists().where(self._listed.c.id == job.id)
                ),
            )
            .returning(JOBS.c.id)
        )  # the number of rows of such an INSERT is not known

        def insert_within(connection: sa.Connection) -> bool:
            if max_live is not None:
                self._check_owner(connection, job, max_live)
            is_new = connection.execute(statement).one_or_none() is not None
            if is_new and queued is not None:
                queued(connection, job, length)
            return is_new

        try:
            return await self._database.run(insert_within, is_large=lambda _is_new: length > LARGE_BYTES)
        except sa.exc.IntegrityError:  # inserted by another replica at the same moment
            return False

    def _check_owner(self, connection: sa.Connection, job: Job, max_live: int) -> None:
        """Hold the owner's lock until the transaction ends, and count its jobs. Raises LimitReached."""
        if self._database.is_postgres:
            key = f"{self._database.config.schema_name}:{job.owner}"
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(sa.func.hashtextextended(key, 0))))
        known = sa.select(sa.func.count()).where(self._listed.c.id == job.id)
        if connection.execute(known).scalar():  # the request came before, perhaps to another replica
            return
        is_theirs = sa.and_(self._is_live, self._listed.c.owner == job.owner)
        theirs = sa.select(sa.literal(1)).where(is_theirs).limit(max_live).subquery()
        live = connection.execute(sa.select(sa.func.count()).select_from(theirs)).scalar() or 0
        if live >= max_live:
            raise LimitReached("jobs_waiting", live + 1, max_live, retry_after_seconds=LIMIT_SECONDS)

    async def find(self, job_id: str) -> Job | None:
        """Return a job by its id, without its body; a `LargeJob` where its outputs are left out, too."""

        query = sa.select(*HEAD).where(self._database.is_job(storable(job_id)))
        row = await self._database.run(lambda connection: connection.execute(query).one_or_none(), is_single=True)
        return None if row is None else head_of(row)

    async def whole(self, job: Job) -> Job | None:
        """Return a job with its body and its outputs, None if it was removed meanwhile."""

        def read(connection: sa.Connection) -> tuple[Job | None, int]:
            row = connection.execute(sa.select(JOBS).where(is_row_of(job))).one_or_none()
            if row is None:
                return None, 0
            return job_of(row), len(row.prompt) + len(row.outputs) + len(row.engine_response)

        found, _ = await self._database.run(read, is_large=lambda answer: answer[1] > LARGE_BYTES)
        return found

    async def page(self, wanted: JobFilter, after: Cursor | None, limit: int) -> list[ListedJob]:
        """Return the first `limit` jobs that pass a filter, after a position."""
        return await read_page(self._read, wanted, after, limit, self._listed)

    async def _read(self, query: sa.Select[Any]) -> list[sa.Row[Any]]:
        return await self._database.run(lambda connection: list(connection.execute(query)))

    async def num_live(self, *, is_probe: bool = False) -> int:
        """Return the number of jobs that have not ended; for a probe on a thread of its own, as `check`."""
        if self._database.is_postgres:
            query = sa.select(sa.func.coalesce(sa.func.sum(LIVE_COUNTS.c.num), 0))
        else:
            query = sa.select(sa.func.coalesce(sa.func.sum(QUEUE_DEPTHS.c.num), 0) - SETTLED.scalar_subquery())
        return await self._count(query, is_probe=is_probe)

    async def num_unsent(self) -> int:
        """Return the number of jobs that are not at the broker."""
        query = sa.select(sa.func.count()).where(self._is_live, self._listed.c.stage == Stage.QUEUED.value)
        return await self._count(query, is_probe=True)

    async def _count(self, query: sa.Select[Any], *, is_probe: bool) -> int:
        return await self._database.run(
            lambda connection: int(connection.execute(query).scalar() or 0), is_probe=is_probe, is_single=True
        )

    async def unsent(self, before_ms: int, limit: int) -> list[Job]:
        """Return the oldest jobs stored before a time and not yet sent to the broker, without their bodies."""
        is_unsent = sa.and_(
            self._is_live, self._listed.c.stage == Stage.QUEUED.value, self._listed.c.queued_ms < before_ms
        )
        oldest = sa.select(self._listed.c.id, self._listed.c.queued_ms).where(is_unsent)
        found = await self._read(oldest.order_by(self._listed.c.number).limit(limit))
        if not found:
            return []
        times = [row.queued_ms for row in found]  # which name the partitions to look into
        are_they = sa.and_(JOBS.c.id.in_([row.id for row in found]), JOBS.c.queued_ms.between(min(times), max(times)))
        return [head_of(row) for row in await self._read(sa.select(*HEAD).where(are_they).order_by(JOBS.c.number))]

    async def live_ids(self, after_number: int, limit: int) -> list[tuple[int, str]]:
        """Return number and id of jobs that were sent and have not ended, in their order after a number."""
        query = sa.select(self._listed.c.number, self._listed.c.id).where(
            self._is_live, self._listed.c.number > after_number
        )
        rows = await self._read(query.order_by(self._listed.c.number).limit(limit))
        return [(row.number, row.id) for row in rows]

    async def live_among(self, numbers: Sequence[int]) -> list[tuple[int, str]]:
        """Return number and id of those of some jobs that have not ended."""
        query = sa.select(self._listed.c.number, self._listed.c.id).where(
            self._is_live, self._listed.c.number.in_(numbers)
        )
        return [(row.number, row.id) for row in await self._read(query)]

    async def ended_among(self, names: Sequence[str]) -> set[str]:
        """Return those of some jobs, by their ids at the broker, that have ended or are not there."""
        numbers = {number: name for name in names if (number := number_of(name)) is not None}
        live = await self.live_among(list(numbers))
        return set(numbers.values()) - {numbers[number] for number, _ in live}

    async def last_times(self, limit: int) -> list[str]:
        """Return the stored times of the jobs that completed last."""
        is_completed = sa.and_(JOBS.c.finished_ms.is_not(None), JOBS.c.state == JobState.COMPLETED.value)
        query = sa.select(JOBS.c.times).where(is_completed).order_by(JOBS.c.finished_ms.desc()).limit(limit)
        return [row.times for row in await self._read(query)]

    async def sent(self, job: Job) -> None:
        """Record that the broker has a job."""
        change = sa.update(JOBS).where(_is_live(job)).values(stage=Stage.WAITING.value)
        await self._database.run(lambda connection: connection.execute(change))

    async def end(self, job: Job, result: Mapping[str, Any], size_bytes: int = 0) -> Job:
        """Store the result of a job, unless it has one, and erase its body. Returns the job as `find` does."""

        def store(connection: sa.Connection) -> None:
            store_end(connection, job, ended_job(job, result))

        await self._database.run(store, is_large=lambda _ended: size_bytes > LARGE_BYTES)
        return await self.find(job.id) or replace(ended_job(job, result), outputs=())

    async def delete(self, job: Job) -> None:
        """Remove a job."""
        await self._database.run(lambda connection: connection.execute(sa.delete(JOBS).where(is_row_of(job))))

    async def forget_finished_before(self, time_ms: int) -> int:
        """Remove jobs that ended before a time; return their number. Partitions of coming days are made with it.

        Days go as a whole where all their jobs are over. Others go in batches, the oldest first: after a long absence
        all at once would take longer than a statement may. Replicas that do this at the same time remove different
        ones.
        """
        now_ms = int(time.time() * 1000)
        listed, before_ms, total = self._listed.c, time_ms, 0
        if self._database.is_postgres:
            before_ms = rows_before_ms(now_ms, time_ms)
            total = len(await self._database.with_engine(lambda engine: _kept_days(engine, now_ms, time_ms)))
        oldest = sa.select(listed.id, listed.queued_ms).where(listed.finished_ms < before_ms)
        batch = oldest.order_by(listed.finished_ms).limit(FORGOTTEN_AT_ONCE).with_for_update(skip_locked=True).cte()
        if self._database.is_postgres:
            gone = sa.delete(JOBS).where(JOBS.c.id == batch.c.id, JOBS.c.queued_ms == batch.c.queued_ms)
        else:
            gone = sa.delete(JOBS).where(JOBS.c.id.in_(sa.select(batch.c.id)))
        while num := await self._database.run(lambda connection: connection.execute(gone).rowcount):
            total += num
        return total

    async def run(self, function: Callable[[sa.Connection], Answer]) -> Answer:
        """Call a function in a transaction of the gateways' database."""
        return await self._database.run(function)


def _kept_days(engine: sa.Engine, now_ms: int, before_ms: int) -> list[str]:
    with engine.connect() as connection:
        return keep_days(connection, now_ms, before_ms)


def head_of(row: sa.Row[Any]) -> Job:
    """Return the job of a row with the columns of HEAD."""
    job = job_of(row)
    if row.output_bytes <= LARGE_BYTES:
        return job
    return LargeJob(**{one.name: getattr(job, one.name) for one in fields(Job)}, output_bytes=row.output_bytes)


def store_end(connection: sa.Connection, job: Job, ended: Job) -> None:
    """Store a job as it has ended, unless it has before, and erase its body."""
    values = {
        **changing_row(ended),
        "request": json.dumps(asdict(ended.request)),
        "prompt": "{}",
        "finished_ms": ended.times.completed_at_ms,
    }
    connection.execute(sa.update(JOBS).where(_is_live(job)).values(values))


def _is_live(job: Job) -> sa.ColumnElement[bool]:
    return sa.and_(is_row_of(job), JOBS.c.finished_ms.is_(None))


def broker_id(number: int) -> str:
    """Return the id of a job at the broker. It is another one when an id is used again for another job."""
    return f"{BROKER_WORD}{number:x}"


def number_of(name: str) -> int | None:
    """Return the number of a job by its id at the broker, None for a job that no gateway has sent."""
    word, digits = name[: len(BROKER_WORD)], name[len(BROKER_WORD) :]
    return int(digits, 16) if word == BROKER_WORD and HEX.fullmatch(digits) else None


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
