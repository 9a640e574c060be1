"""Partitions of jobs by day in PostgreSQL: made ahead, filled, converted from a whole table, and dropped."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa

from darkroom.worker.storage.database import JOB_INDEX, JOBS, whole_row
from darkroom.worker.storage.job import Job, JobRequest, JobState, JobTimes
from darkroom.worker.storage.job_partitions import (
    DAY_MS,
    DAYS_AHEAD,
    WAIT_FOR_DAY_MS,
    WEEK_MS,
    day_of,
    keep_days,
    make_days,
    rows_before_ms,
)
from darkroom.worker.storage.migrations.__main__ import migrate
from darkroom.worker.storage.postgres_database import PostgresDatabase, open_postgres
from darkroom.worker.storage.webhook_rows import WebhookRow, webhook_insert
from tests.worker.databases import opened
from tests.worker.postgres_server import SCHEMA, PostgresServer

NOW_MS = int(time.time() * 1000)
WHERE = sa.text("SELECT tableoid::regclass::text FROM jobs WHERE id = :id")
TABLES = sa.text("SELECT relname FROM pg_class WHERE relkind = 'r' AND relname LIKE 'jobs%' AND NOT relispartition")


@pytest.fixture
def engine(postgres: PostgresServer) -> Iterator[sa.Engine]:
    """A database with today's tables, whose days are made by the test."""
    engine = open_postgres(postgres.config(postgres.new_database()), num_connections=8)
    yield engine
    engine.dispose()


@pytest.fixture
def connection(engine: sa.Engine) -> Iterator[sa.Connection]:
    with engine.connect() as connection:
        yield connection


def row_of(job_id: str, queued_ms: int, finished_ms: int | None = None, number: int | None = None) -> dict[str, object]:
    number = queued_ms if number is None else number
    job = Job(job_id, number, "hash", JobRequest(), {"1": {"class_type": "A"}}, JobTimes(queued_ms), owner="shop")
    if finished_ms is not None:
        job.end(JobState.FAILED, "over", finished_ms)
    return whole_row(job)


def add(connection: sa.Connection, *rows: dict[str, object]) -> None:
    with connection.begin():
        connection.execute(sa.insert(JOBS), list(rows))


def places(connection: sa.Connection) -> dict[str, str]:
    """The partition of each job; the index of jobs is checked to be equal to them."""
    columns = [JOBS.c[column.name] for column in JOB_INDEX.c]
    with connection.begin():
        rows = connection.execute(sa.select(*columns).order_by(JOBS.c.id)).all()
        assert connection.execute(sa.select(JOB_INDEX).order_by(JOB_INDEX.c.id)).all() == rows
        return {row.id: connection.execute(WHERE, {"id": row.id}).scalar_one() for row in rows}


def partitions(connection: sa.Connection) -> list[str]:
    with connection.begin():
        query = "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'jobs'::regclass ORDER BY 1"
        return list(connection.execute(sa.text(query)).scalars())


def test_jobs_of_a_day_share_a_partition_that_is_made_ahead(connection: sa.Connection) -> None:
    make_days(connection, NOW_MS)
    days = [day_of(NOW_MS + number * DAY_MS).name for number in range(DAYS_AHEAD + 1)]
    assert partitions(connection) == [*days, "jobs_default"]
    midnight = NOW_MS // DAY_MS * DAY_MS + DAY_MS
    add(connection, row_of("a", midnight - 1), row_of("b", midnight), row_of("old", 5), row_of("far", NOW_MS * 2))
    assert places(connection) == {"a": days[0], "b": days[1], "far": "jobs_default", "old": "jobs_default"}
    make_days(connection, NOW_MS)
    assert partitions(connection) == [*days, "jobs_default"]


def test_jobs_that_came_before_the_partition_of_their_day_move_to_it(connection: sa.Connection) -> None:
    add(connection, row_of("a", NOW_MS), row_of("b", NOW_MS + DAY_MS), row_of("old", 5))
    make_days(connection, NOW_MS)
    assert places(connection) == {"a": day_of(NOW_MS).name, "b": day_of(NOW_MS + DAY_MS).name, "old": "jobs_default"}


def test_replicas_that_make_the_same_days_at_once_make_each_once(engine: sa.Engine) -> None:
    def make() -> None:
        with engine.connect() as connection:
            make_days(connection, NOW_MS)

    with ThreadPoolExecutor(4) as threads:
        for made in [threads.submit(make) for _ in range(4)]:
            made.result()
    with engine.connect() as connection:
        make_days(connection, NOW_MS)  # those for which all waited too long for each other
        assert len(partitions(connection)) == DAYS_AHEAD + 2


def test_an_id_is_taken_on_every_day(connection: sa.Connection) -> None:
    make_days(connection, NOW_MS)
    add(connection, row_of("a", NOW_MS))
    for other in (row_of("a", NOW_MS + DAY_MS), row_of("b", NOW_MS + DAY_MS, number=NOW_MS)):
        with pytest.raises(sa.exc.IntegrityError):
            add(connection, other)
    assert list(places(connection)) == ["a"]
    with connection.begin():
        connection.execute(sa.delete(JOBS).where(JOBS.c.id == "a"))
    add(connection, row_of("a", NOW_MS + DAY_MS))
    assert places(connection) == {"a": day_of(NOW_MS + DAY_MS).name}


def test_a_day_goes_as_a_whole_once_all_its_jobs_are_over(connection: sa.Connection) -> None:
    first, second = NOW_MS - 2 * DAY_MS, NOW_MS - DAY_MS
    make_days(connection, first)
    last_ms = day_of(first).end_ms + 1000  # of the first day, which ended on the second
    rows = [row_of("a", first, first + 9), row_of("b", first + 1, last_ms), row_of("c", second, second + 9)]
    add(connection, *rows, row_of("live", second + 1))
    assert keep_days(connection, NOW_MS, last_ms) == []
    assert sorted(keep_days(connection, NOW_MS, last_ms + 1)) == ["a", "b"]
    assert keep_days(connection, NOW_MS, NOW_MS) == []
    assert list(places(connection)) == ["c", "live"]
    assert day_of(first).name not in partitions(connection)
    add(connection, row_of("a", NOW_MS))  # its id is free again


def test_a_day_waits_for_a_job_that_comes_from_a_late_clock(engine: sa.Engine) -> None:
    first = NOW_MS - 2 * DAY_MS
    with engine.connect() as connection:
        make_days(connection, first)
        add(connection, row_of("a", first, first + 9))
        late = engine.connect()
        adding = late.begin()
        late.execute(sa.insert(JOBS), [row_of("late", first + 1)])  # not committed yet
        with ThreadPoolExecutor(1) as threads:
            dropping = threads.submit(keep_days, connection, NOW_MS, NOW_MS)
            until = time.monotonic() + 30
            with engine.connect() as watching:
                waiting = sa.text("SELECT count(*) FROM pg_locks WHERE NOT granted AND mode = 'AccessExclusiveLock'")
                while not watching.execute(waiting).scalar() and not dropping.done():
                    assert time.monotonic() < until
                    watching.rollback()
            adding.commit()
            assert dropping.result() == []
        late.close()
        assert list(places(connection)) == ["a", "late"]


def test_a_table_that_is_in_use_is_left_for_the_next_call(engine: sa.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("darkroom.worker.storage.job_partitions.LOCK_SECONDS", 1)
    first = NOW_MS - 2 * DAY_MS
    with engine.connect() as connection, engine.connect() as reading:
        make_days(connection, first)
        add(connection, row_of("a", first, first + 9))
        reading.execute(sa.select(JOBS.c.id)).all()  # as pg_dump, whose transaction goes on
        assert keep_days(connection, NOW_MS, NOW_MS) == []
        assert list(places(connection)) == ["a"]
        reading.rollback()
        assert keep_days(connection, NOW_MS, NOW_MS) == ["a"]


def test_jobs_without_a_day_go_at_their_time(connection: sa.Connection) -> None:
    add(connection, row_of("a", 1, 10), row_of("b", 2, 11), row_of("live", 3))
    assert keep_days(connection, NOW_MS, 11) == ["a"]
    assert list(places(connection)) == ["b", "live"]


def test_rows_wait_for_their_day_where_results_are_kept_for_a_week() -> None:
    assert rows_before_ms(NOW_MS, NOW_MS - DAY_MS) == NOW_MS - DAY_MS
    assert rows_before_ms(NOW_MS, NOW_MS - WEEK_MS) == NOW_MS - WEEK_MS - WAIT_FOR_DAY_MS


async def test_a_worker_forgets_a_whole_day_with_its_webhooks_once_all_are_sent(
    tmp_path: Path, postgres: PostgresServer
) -> None:
    config = postgres.config(postgres.new_database())
    first = NOW_MS - 2 * DAY_MS
    engine = open_postgres(config)
    with engine.connect() as connection:
        make_days(connection, first)
    async with opened(tmp_path, lambda: PostgresDatabase(config)) as store:
        for job_id in ("one", "two"):
            job = Job(job_id, store.take_number(), "hash", JobRequest(), {}, JobTimes(first))
            await store.insert(job)
            job.end(JobState.FAILED, "over", first + 9)
            row = WebhookRow(f"msg_{job_id}", job_id, "http://x", b"{}", None, 3.0, False, "pending", 0, 1, 1)
            await store.save(job, webhook_insert(row))
            row = replace(row, state="delivered")
            if job_id == "one":
                await store.webhooks.update(row)
        week_ago = NOW_MS - WEEK_MS
        assert await store.forget_finished_before(week_ago) == []
        assert await store.forget_finished_before(NOW_MS - DAY_MS) == ["one"]  # by its row: the day has a pending one
        await store.webhooks.update(row)
        assert await store.forget_finished_before(NOW_MS - DAY_MS) == ["two"]
        assert await store.find("two") is None and await store.webhooks.find("msg_two") is None
    with engine.connect() as connection:
        assert day_of(first).name not in partitions(connection)
    engine.dispose()


def test_a_whole_table_becomes_partitions_with_its_jobs_and_back(postgres: PostgresServer) -> None:
    config = postgres.config(postgres.new_database(is_empty=True))
    engine = open_postgres(config)
    url = config.url.get_secret_value().replace("postgresql://", "postgresql+psycopg://")
    url = f"{url}?options=-csearch_path%3D{SCHEMA}"
    with engine.connect() as connection:
        with connection.begin():
            connection.execute(sa.schema.CreateSchema(SCHEMA))
        migrate(url, "0007")
        rows = [row_of("a", NOW_MS - 9 * DAY_MS, NOW_MS), row_of("b", NOW_MS), row_of("far", NOW_MS * 2)]
        add(connection, *rows)
        migrate(url)
        assert places(connection) == {"a": "jobs_earlier", "b": "jobs_earlier", "far": "jobs_default"}
        make_days(connection, NOW_MS)
        assert day_of(NOW_MS).name not in partitions(connection)
        assert day_of(NOW_MS + DAY_MS).name in partitions(connection)
        add(connection, row_of("c", NOW_MS + DAY_MS))
        with connection.begin():
            stored = connection.execute(sa.select(JOBS).order_by(JOBS.c.id)).mappings().all()
        assert [dict(row) for row in stored if row["id"] != "c"] == rows
        migrate(url, "0007")
        with connection.begin():
            assert connection.execute(sa.select(JOBS).order_by(JOBS.c.id)).mappings().all() == stored
            assert list(connection.execute(TABLES).scalars()) == ["jobs"]
        migrate(url)
        assert list(places(connection)) == ["a", "b", "c", "far"]
        over = {"finished_ms": NOW_MS, "state": "failed"}
        with connection.begin():
            connection.execute(sa.update(JOBS).values(over))
        later = NOW_MS + 3 * DAY_MS
        assert sorted(keep_days(connection, later, later)) == ["a", "b", "c", "far"]
        assert "jobs_earlier" not in partitions(connection)
    engine.dispose()
