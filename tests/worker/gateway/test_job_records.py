"""Rows of jobs that several gateways write at the same moment."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest
import sqlalchemy as sa

from darkroom.worker.errors import LimitReached
from darkroom.worker.gateway.database import GatewayDatabase
from darkroom.worker.gateway.job_records import JobRecords, ended_job
from darkroom.worker.storage.job import Job, JobRequest, JobState, JobTimes
from darkroom.worker.storage.job_list import JobFilter
from darkroom.worker.storage.job_partitions import DAY_MS, day_of, make_days
from tests.worker.postgres_server import PostgresServer


@asynccontextmanager
async def two_replicas(postgres: PostgresServer) -> AsyncIterator[tuple[JobRecords, JobRecords]]:
    database = postgres.new_database()
    replicas = [JobRecords(GatewayDatabase(postgres.config(database))) for _ in range(2)]
    for records in replicas:
        await records.open()
    try:
        yield replicas[0], replicas[1]
    finally:
        for records in replicas:
            await records.close()


@contextmanager
def counted(event: str, target: type) -> Iterator[list[object]]:
    """Collect the calls of an event of SQLAlchemy."""
    calls: list[object] = []

    def note(*_given: object) -> None:
        calls.append(event)

    sa.event.listen(target, event, note)
    try:
        yield calls
    finally:
        sa.event.remove(target, event, note)


def a_job(name: str, owner: str = "shop", queued_ms: int = 1) -> Job:
    return Job(name, 0, "digest", JobRequest(), {"input": {}}, JobTimes(queued_ms), owner=owner)


async def test_replicas_together_take_no_more_jobs_of_a_caller_than_its_limit(postgres: PostgresServer) -> None:
    async with two_replicas(postgres) as replicas:

        async def insert(number: int) -> str:
            try:
                return str(await replicas[number % 2].insert(a_job(f"job-{number}"), 5))
            except LimitReached as refused:
                return str(refused.fields["limit"])

        found = await asyncio.gather(*(insert(number) for number in range(40)))
        assert sorted(found) == ["True"] * 5 + ["jobs_waiting"] * 35
        assert await replicas[0].insert(a_job("of-another", "studio"), 5)
        taken = f"job-{found.index('True')}"
        assert not await replicas[1].insert(a_job(taken), 5)  # the same request once more is no new job
        ended = await replicas[0].find(taken)
        assert ended is not None
        await replicas[0].end(ended, {"status": "completed"})
        assert await replicas[1].insert(a_job("next"), 5)


async def test_results_over_their_time_go_in_batches_from_all_replicas_at_once(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("darkroom.worker.gateway.job_records.FORGOTTEN_AT_ONCE", 3)
    begun_ms = int(time.time() * 1000)
    async with two_replicas(postgres) as replicas:
        for number in range(12):
            job = a_job(f"job-{number}", queued_ms=begun_ms)
            await replicas[0].insert(job)
            if number < 11:
                await replicas[0].end(job, {"status": "completed", "timings": {"completed_at_ms": begun_ms + number}})
        gone = await asyncio.gather(*(records.forget_finished_before(begun_ms + 10) for records in replicas))
        assert sum(gone) == 10
        assert [await replicas[1].find(f"job-{number}") is not None for number in (9, 10, 11)] == [False, True, True]


async def test_the_number_of_live_jobs_is_counted_through_everything_that_happens_to_them(
    postgres: PostgresServer,
) -> None:
    async with two_replicas(postgres) as replicas:
        first, second = replicas
        jobs = [a_job(f"job-{number}") for number in range(30)]
        await asyncio.gather(*(replicas[number % 2].insert(job) for number, job in enumerate(jobs)))
        assert not await second.insert(a_job("job-0"))
        assert await first.num_live() == await second.num_live() == 30
        await asyncio.gather(*(second.sent(job) for job in jobs[:10]))
        assert [job.id for job in await first.unsent(2**60, 50)] == [job.id for job in jobs[10:]]
        ends = [(records, job) for job in jobs[:12] for records in replicas]  # both at once store the end of each
        await asyncio.gather(*(records.end(job, {"status": "completed"}) for records, job in ends))
        assert await first.num_live() == 18
        await second.delete(jobs[0])
        await second.delete(jobs[29])
        assert await first.num_live() == 17
        assert len(await first.live_ids(-1, 50)) == 17


async def test_unsent_jobs_are_read_together_and_over_the_connections_that_are_there(postgres: PostgresServer) -> None:
    today_ms = int(time.time() * 1000)
    async with two_replicas(postgres) as (records, _):
        jobs = [a_job(f"job-{number}", queued_ms=today_ms - number % 2 * DAY_MS) for number in range(20)]
        for job in jobs:
            await records.insert(job)
        large = a_job("large", queued_ms=today_ms)
        large.prompt = {"input": {"text": "x" * 1_000_000}}
        await records.insert(large)
        with counted("before_cursor_execute", sa.Engine) as statements:
            found = await records.unsent(2**60, 50)
        assert [job.id for job in found] == [*(job.id for job in jobs), "large"] and len(statements) <= 2
        with counted("connect", sa.pool.Pool) as opened:
            for head in found[:-1]:
                whole = await records.whole(head)
                assert whole is not None and whole.prompt == {"input": {}}
        assert len(opened) <= 1, "the first after the large one"
        await records.whole(found[-1])
        with counted("connect", sa.pool.Pool) as opened:
            await records.whole(found[0])
        assert opened, "the buffers of a large job are given up"


def test_the_split_of_a_workers_result_is_kept() -> None:
    result = {"status": "completed", "tuning": {"quality": "same"}, "split": {"engines": 2, "by": "batch"}}
    assert ended_job(a_job("one"), result).tuning == {"quality": "same", "split": {"engines": 2, "by": "batch"}}


async def test_a_request_that_comes_twice_around_midnight_is_one_job(postgres: PostgresServer) -> None:
    midnight = (int(time.time() * 1000) // DAY_MS + 1) * DAY_MS
    async with two_replicas(postgres) as replicas:
        for number in range(20):
            jobs = [a_job(f"job-{number}", queued_ms=midnight + late) for late in (-1, 0)]
            pairs = zip(replicas, jobs, strict=True)
            assert sorted(await asyncio.gather(*(records.insert(job) for records, job in pairs))) == [False, True]
            assert not await replicas[number % 2].insert(jobs[0])
        page = await replicas[0].page(JobFilter(("shop",)), None, 50)
        assert sorted(job.id for job in page) == sorted(f"job-{number}" for number in range(20))
        for number in range(20):
            job = await replicas[1].find(f"job-{number}")
            assert job is not None
            await replicas[0].sent(job)
            assert (await replicas[1].end(job, {"status": "completed"})).state is JobState.COMPLETED
        assert await replicas[0].num_live() == 0 and await replicas[0].unsent(2**60, 50) == []


async def test_gateways_make_the_days_ahead_and_drop_those_that_are_over(postgres: PostgresServer) -> None:
    now_ms = int(time.time() * 1000)
    async with two_replicas(postgres) as replicas:
        for name, day in (("soon", 2), ("old", -2)):
            job = a_job(name, queued_ms=now_ms + day * DAY_MS)
            await replicas[0].insert(job)
            await replicas[0].end(job, {"status": "completed", "timings": {"completed_at_ms": now_ms - DAY_MS}})

        def make_an_old_day(engine: sa.Engine) -> None:
            with engine.connect() as connection:
                make_days(connection, now_ms - 2 * DAY_MS)

        await replicas[0]._database.with_engine(make_an_old_day)
        gone = await asyncio.gather(*(records.forget_finished_before(now_ms) for records in replicas))
        # A day of which each has locked a part, neither drops: it is left for the next call.
        assert sum(gone) + await replicas[0].forget_finished_before(now_ms) == 2
        days = [day_of(now_ms + day * DAY_MS).name for day in (-2, 0, 2)]
        query: sa.Select[Any] = sa.select(sa.column("tablename")).select_from(sa.table("pg_tables"))
        tables = {row.tablename for row in await replicas[0]._read(query)}
        assert [day in tables for day in days] == [False, True, True]
