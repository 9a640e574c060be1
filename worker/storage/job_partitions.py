"""Partitions of the table of jobs in PostgreSQL, one a day of arrival (UTC): made ahead, and dropped as a whole.

Blocking. The partitions of the next days are made while their rows do not exist yet, which locks nothing that jobs use.
A job whose day has no partition is in `jobs_default` until the day gets one.

Jobs go row by row when their time is over, unless results are kept for a week or longer: they go with their day then,
at most `WAIT_FOR_DAY_MS` later, and none of their rows is touched for it. Those in `jobs_default` never wait.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import sqlalchemy as sa
import structlog

from darkroom.worker.storage.database import JOB_INDEX, JOBS, WEBHOOKS
from darkroom.worker.storage.webhook_rows import WebhookState

DAY_MS: Final = 86_400_000
DAYS_AHEAD: Final = 3
WEEK_MS: Final = 7 * DAY_MS
WAIT_FOR_DAY_MS: Final = 30 * 3_600_000
"""A day, since its first job waits for its last one, and six hours, in which that one ends."""

FORGOTTEN_AT_ONCE: Final = 20_000  # entries of the index, in one statement
FIRST_MS: Final = -(2**63)
FORGET_SOME: Final = sa.text(
    "DELETE FROM job_index WHERE ctid = ANY (ARRAY (SELECT ctid FROM job_index AS ended "
    "WHERE ended.queued_ms >= :start AND ended.queued_ms < :end LIMIT :most)) RETURNING id"
)
"""Removes entries of the index by their places: a join by their ids would read the whole index each time."""

LOCK_SECONDS: Final = 2
DEFAULT: Final = "jobs_default"
BLOCKED: Final = ("55P03", "40P01")
"""SQLSTATE of a lock that is held for longer than LOCK_SECONDS, and of a deadlock."""

MADE: Final = ("42P07", "42710", "23505")
"""SQLSTATE of a table that another session has made: by its name, the type of its rows, or a row of the catalog."""

DROPPED: Final = "42P01"
"""SQLSTATE of a table that another session has dropped."""

PARTITIONS: Final = sa.text(
    "SELECT child.relname, pg_get_expr(child.relpartbound, child.oid) FROM pg_inherits "
    "JOIN pg_class child ON child.oid = inhrelid WHERE inhparent = CAST('jobs' AS regclass) ORDER BY child.relname"
)
BOUNDS: Final = re.compile(r"FOR VALUES FROM \((?:MINVALUE|'?(-?\d+)'?)\) TO \('?(-?\d+)'?\)")

log = structlog.get_logger("jobs.partitions")


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition of jobs that arrived from `start_ms` (None: from the first) to before `end_ms`."""

    name: str
    start_ms: int | None
    end_ms: int

    def covers(self, at_ms: int) -> bool:
        return (self.start_ms is None or self.start_ms <= at_ms) and at_ms < self.end_ms

    @property
    def jobs(self) -> sa.ColumnElement[bool]:
        """The condition of its jobs in the index."""
        is_before = JOB_INDEX.c.queued_ms < self.end_ms
        return is_before if self.start_ms is None else sa.and_(is_before, JOB_INDEX.c.queued_ms >= self.start_ms)


def day_of(at_ms: int) -> Partition:
    """Return the partition of a moment's day."""
    start_ms = at_ms // DAY_MS * DAY_MS
    return Partition(f"jobs_{datetime.fromtimestamp(start_ms / 1000, UTC):%Y%m%d}", start_ms, start_ms + DAY_MS)


def rows_before_ms(now_ms: int, before_ms: int) -> int:
    """Return the time before which rows of jobs go, where jobs that ended before `before_ms` are over their time."""
    return before_ms - WAIT_FOR_DAY_MS if now_ms - before_ms >= WEEK_MS else before_ms


def keep_days(connection: sa.Connection, now_ms: int, before_ms: int) -> list[str]:
    """Make the partitions of the next days, and remove days and jobs without a day that all ended before a time.

    Returns the ids of the removed jobs; their delivered webhooks go with them. What another session holds a lock of is
    left for the next call. Raises DBAPIError.
    """
    make_days(connection, now_ms)
    dropped = [job_id for day in _partitions(connection) for job_id in _dropped(connection, day, before_ms)]
    return [*dropped, *_outside_days(connection, before_ms)]


def make_days(connection: sa.Connection, now_ms: int) -> None:
    """Make the partitions of today and the next days, where there are none. Raises DBAPIError."""
    there = _partitions(connection)
    for number in range(DAYS_AHEAD + 1):
        at_ms = now_ms + number * DAY_MS
        if not any(partition.covers(at_ms) for partition in there):
            _make(connection, day_of(at_ms))


def _partitions(connection: sa.Connection) -> list[Partition]:
    with connection.begin():
        rows = connection.execute(PARTITIONS).all()
    # Without bounds: another gateway has dropped the day meanwhile.
    found = [(name, BOUNDS.fullmatch(bounds)) for name, bounds in rows if bounds is not None]
    return [
        Partition(name, None if bounds[1] is None else int(bounds[1]), int(bounds[2]))
        for name, bounds in found
        if bounds is not None  # else that of all other days
    ]


def _make(connection: sa.Connection, day: Partition) -> None:
    """Make one partition, with the rows of its day that are in the default one. Another replica may do so, too."""
    moved = f"DELETE FROM {DEFAULT} WHERE queued_ms >= {day.start_ms} AND queued_ms < {day.end_ms} RETURNING *"
    statements = (
        f"CREATE TABLE {day.name} (LIKE jobs INCLUDING DEFAULTS)",
        f"LOCK TABLE {DEFAULT} IN ACCESS EXCLUSIVE MODE",
        f"WITH moved AS ({moved}) INSERT INTO {day.name} SELECT * FROM moved",
        f"ALTER TABLE jobs ATTACH PARTITION {day.name} FOR VALUES FROM ({day.start_ms}) TO ({day.end_ms})",
    )
    try:
        with connection.begin():
            _limit_locks(connection)
            for statement in statements:
                connection.exec_driver_sql(statement)
    except sa.exc.DBAPIError as error:
        if _sqlstate(error) not in (*BLOCKED, *MADE):
            raise


def _dropped(connection: sa.Connection, partition: Partition, before_ms: int) -> list[str]:
    """Drop a partition and return the ids of its jobs; nothing happens if one of them is not over.

    The index goes first: that takes seconds for a day of many jobs, in which the table is not locked.
    """
    if partition.end_ms > before_ms:
        return []
    try:
        with connection.begin() as transaction:
            if _has_pending_webhook(connection, partition) or not _is_over(connection, partition, before_ms):
                return []
            _limit_locks(connection)
            _forget_delivered(connection, partition)
            ids = list(_forgotten(connection, partition))
            connection.exec_driver_sql("LOCK TABLE jobs IN ACCESS EXCLUSIVE MODE")
            if not _is_over(connection, partition, before_ms):  # a job came meanwhile, from a clock that is late
                transaction.rollback()
                return []
            connection.exec_driver_sql(f"DROP TABLE {partition.name}")
    except sa.exc.DBAPIError as error:
        if _sqlstate(error) not in (*BLOCKED, DROPPED):
            raise
        return []
    log.info("partition dropped", partition=partition.name, num_jobs=len(ids))
    return ids


def _outside_days(connection: sa.Connection, before_ms: int) -> Iterator[str]:
    """Remove the jobs of the default partition that ended before a time, and yield their ids."""
    table = sa.table(DEFAULT, *(sa.column(column.name, column.type) for column in JOB_INDEX.c))
    is_pending = sa.and_(WEBHOOKS.c.job_id == table.c.id, WEBHOOKS.c.state == WebhookState.PENDING.value)
    is_over = sa.and_(table.c.finished_ms < before_ms, ~sa.exists().where(is_pending))
    query = sa.select(table.c.id, table.c.queued_ms).where(is_over).limit(FORGOTTEN_AT_ONCE)
    batch = query.with_for_update(skip_locked=True).cte()
    is_gone = sa.and_(JOBS.c.id == batch.c.id, JOBS.c.queued_ms == batch.c.queued_ms)
    while True:
        try:
            with connection.begin():
                ids = list(connection.execute(sa.delete(JOBS).where(is_gone).returning(JOBS.c.id)).scalars())
                is_theirs = sa.and_(WEBHOOKS.c.job_id.in_(ids), WEBHOOKS.c.state == WebhookState.DELIVERED.value)
                if ids:
                    connection.execute(sa.delete(WEBHOOKS).where(is_theirs))
        except sa.exc.DBAPIError as error:
            if _sqlstate(error) not in BLOCKED:  # another gateway drops a day
                raise
            return
        if not ids:
            return
        yield from ids


def _is_over(connection: sa.Connection, partition: Partition, before_ms: int) -> bool:
    table = sa.table(partition.name, sa.column("finished_ms", sa.BigInteger))
    is_kept = sa.or_(table.c.finished_ms.is_(None), table.c.finished_ms >= before_ms)
    return not connection.execute(sa.select(sa.exists().where(is_kept).select_from(table))).scalar()


def _has_pending_webhook(connection: sa.Connection, partition: Partition) -> bool:
    is_pending = sa.and_(WEBHOOKS.c.job_id == JOB_INDEX.c.id, WEBHOOKS.c.state == WebhookState.PENDING.value)
    return bool(connection.execute(sa.select(sa.exists().where(is_pending, partition.jobs))).scalar())


def _forget_delivered(connection: sa.Connection, partition: Partition) -> None:
    is_delivered = WEBHOOKS.c.state == WebhookState.DELIVERED.value
    connection.execute(sa.delete(WEBHOOKS).where(WEBHOOKS.c.job_id == JOB_INDEX.c.id, is_delivered, partition.jobs))


def _forgotten(connection: sa.Connection, partition: Partition) -> Iterator[str]:
    """Remove the jobs of a partition from the index, and yield their ids."""
    bounds = {
        "start": FIRST_MS if partition.start_ms is None else partition.start_ms,
        "end": partition.end_ms,
        "most": FORGOTTEN_AT_ONCE,
    }
    while ids := list(connection.execute(FORGET_SOME, bounds).scalars()):
        yield from ids


def _limit_locks(connection: sa.Connection) -> None:
    """Bound the wait for a lock: whoever waits for a lock of a whole table lets others wait behind it."""
    connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{LOCK_SECONDS}s'")


def _sqlstate(error: sa.exc.DBAPIError) -> str:
    return getattr(error.orig, "sqlstate", None) or ""
