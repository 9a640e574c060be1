"""JobLedger: the table of jobs as the queue of the same database uses it, within the queue's transactions."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, Final

import sqlalchemy as sa
import structlog

from darkroom.worker.gateway.database import GatewayDatabase
from darkroom.worker.gateway.job_records import (
    HEAD,
    JobRecords,
    broker_id,
    ended_job,
    head_of,
    number_of,
    store_end,
)
from darkroom.worker.gateway.queue.queue import DatabaseQueue, priority_of, rank_of
from darkroom.worker.gateway.queue.statements import NewJob
from darkroom.worker.jobs.envelope import refusal
from darkroom.worker.json.values import WRONG_SHAPE, object_at
from darkroom.worker.sources.broker import JobTooLarge, Producer
from darkroom.worker.storage.database import JOBS
from darkroom.worker.storage.job import Job, Stage

UNREADABLE: Final = "The result at the broker cannot be read"
UNREADABLE_ERROR: Final = {"status": 500, "code": "result_unreadable", "message": UNREADABLE}
LOOKED_AT_ONCE: Final = 500
LEAVING: Final = sa.text(
    "SELECT position, job_id, rank, owner, model, asked_id, is_cancelled, settled_ms FROM queue "
    "WHERE number IS NOT NULL ORDER BY position LIMIT :most"
)
BODY: Final = sa.text("SELECT body FROM queue WHERE position = :position")
LEAVE: Final = sa.text("DELETE FROM queue WHERE position IN :positions RETURNING number, stored_ms").bindparams(
    sa.bindparam("positions", expanding=True)
)
ADOPTED: Final = ("number", "queued_ms", "owner", "asked_id", "id", "request")

log = structlog.get_logger("gateway")


class JobLedger:
    """Jobs that are named at the queue by their numbers."""

    def __init__(self, database: GatewayDatabase) -> None:
        self._listed = database.listed

    def has(self, job_id: str) -> bool:
        return number_of(job_id) is not None

    def end(self, connection: sa.Connection, job_id: str, result: bytes) -> list[bytes]:
        row = connection.execute(sa.select(*HEAD).where(self._is_live(job_id))).one_or_none()
        if row is None:
            return []
        job = head_of(row)
        ended = read_end(job, result)
        store_end(connection, job, ended)
        event = {"id": job.public_id, "status": ended.state.value, "message": ended.message, "seq": ended.seq}
        return [json.dumps(event).encode()]

    def body_with_webhook(self, connection: sa.Connection, job_id: str) -> bytes | None:
        body = connection.execute(sa.select(JOBS.c.prompt).where(self._is_live(job_id))).scalar()
        return body.encode() if body is not None and object_at(json.loads(body), "input").get("webhook") else None

    def live_among(self, connection: sa.Connection, job_ids: Collection[str]) -> set[str]:
        numbers = {number_of(job_id): job_id for job_id in job_ids}
        listed = self._listed.c
        live = sa.select(listed.number).where(listed.number.in_(list(numbers)), listed.finished_ms.is_(None))
        return {numbers[number] for number in connection.execute(live).scalars()}

    def _is_live(self, job_id: str) -> sa.ColumnElement[bool]:
        """Return the condition of the row of a job that has not ended, with its partition."""
        number, is_live = number_of(job_id), self._listed.c.finished_ms.is_(None)
        stored_ms = sa.select(self._listed.c.queued_ms).where(self._listed.c.number == number, is_live)
        return sa.and_(JOBS.c.number == number, JOBS.c.queued_ms == stored_ms.scalar_subquery())


def read_end(job: Job, result: bytes) -> Job:
    """Return a job as a worker's result ends it; as failed by one that cannot be read."""
    try:
        return ended_job(job, json.loads(result))
    except WRONG_SHAPE:
        return ended_job(job, refusal(job.id, UNREADABLE, UNREADABLE_ERROR))


def adder(queue: DatabaseQueue, model: str, wake: str | None) -> Callable[[sa.Connection, Job, int], object]:
    """Return the function that adds a job to the queue, in the transaction that stores it as one that was sent."""

    def add(connection: sa.Connection, job: Job, length: int) -> None:
        new = NewJob(
            broker_id(job.number), rank_of(job.request.priority), job.owner or "", model, job.public_id,
            length, None, job.number, job.times.queued_at_ms,
        )  # fmt: skip
        queue.add(connection, new, wake)

    return add


async def adopt(queue: DatabaseQueue) -> int:
    """Queue jobs that have not ended and are not in the queue: those of a time with a broker. Returns their number."""
    listed, num, last = queue.database.listed.c, 0, -1

    def add(connection: sa.Connection) -> tuple[int, int]:
        """Return the number of jobs that were queued, and the last that was looked at; -1 after the last of all."""
        live = sa.select(listed.number, listed.queued_ms).where(listed.finished_ms.is_(None), listed.number > last)
        rows = connection.execute(live.order_by(listed.number).limit(LOOKED_AT_ONCE)).all()
        names = {broker_id(row.number): row for row in rows}
        known = set(connection.execute(queue.shared.find, {"job_ids": list(names)}).scalars()) if names else set()
        lacking = {row.number: row.queued_ms for name, row in names.items() if name not in known}
        if lacking:
            _queue_again(queue, connection, lacking)
        return len(lacking), rows[-1].number if len(rows) == LOOKED_AT_ONCE else -1

    while True:
        num_found, last = await queue.run(add)
        num += num_found
        if last < 0:
            return num


async def leave_queue(records: JobRecords, producer: Producer) -> int:
    """Take all jobs from the queue, as ones that were not sent to the broker yet. Returns their number.

    The broker is told of those that are cancelled, and gets those that have ended and wait on for their webhook. Raises
    BrokerUnreachable.
    """
    num = 0
    while rows := await records.run(lambda connection: connection.execute(LEAVING, {"most": LOOKED_AT_ONCE}).all()):
        for row in rows:
            if row.is_cancelled or row.settled_ms is not None:
                await _hand_over(records, producer, row)
        num += await records.run(partial(_leave, [row.position for row in rows]))
    return num


async def _hand_over(records: JobRecords, producer: Producer, row: sa.Row[Any]) -> None:
    """Let a broker know that a job is cancelled, before a worker can have it from there."""
    await producer.cancel(row.job_id)
    if row.settled_ms is None:
        return
    found = await records.run(lambda connection: connection.execute(BODY, {"position": row.position}).scalar())
    if found is None:
        return
    asked = {"model": row.model, "owner": row.owner, "asked_id": row.asked_id}
    try:
        await producer.put(row.job_id, bytes(found), priority=priority_of(row.rank), **asked)
    except JobTooLarge as error:
        log.warning("webhook of cancelled job not sent", request_id=row.asked_id, reason=str(error))


def _leave(positions: list[int], connection: sa.Connection) -> int:
    rows = connection.execute(LEAVE, {"positions": positions}).all()
    if rows:
        times = [row.stored_ms for row in rows]  # which name the partitions to look into
        is_one = sa.and_(JOBS.c.number.in_([row.number for row in rows]), JOBS.c.finished_ms.is_(None))
        change = sa.update(JOBS).where(is_one, JOBS.c.queued_ms.between(min(times), max(times)))
        connection.execute(change.values(stage=Stage.QUEUED.value))
    return len(rows)


def _queue_again(queue: DatabaseQueue, connection: sa.Connection, times: Mapping[int, int]) -> None:
    """Queue those of some jobs that have not ended meanwhile; `times` are those of their rows, by their numbers."""
    earliest, latest = min(times.values()), max(times.values())  # which name the partitions to look into
    are_they = sa.and_(JOBS.c.number.in_(list(times)), JOBS.c.queued_ms.between(earliest, latest))
    change = sa.update(JOBS).where(are_they, JOBS.c.finished_ms.is_(None)).values(stage=Stage.WAITING.value)
    size = sa.func.octet_length(JOBS.c.prompt).label("num_bytes")
    changed = change.returning(*(JOBS.c[name] for name in ADOPTED), size)
    for row in sorted(connection.execute(changed).all(), key=lambda row: row.number):
        new = NewJob(
            broker_id(row.number), rank_of(json.loads(row.request).get("priority") or 0), row.owner or "", "",
            row.asked_id or row.id, row.num_bytes, None, row.number, row.queued_ms,
        )  # fmt: skip
        queue.add(connection, new, None)
