"""Rows of jobs that several gateways write at the same moment."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.worker.postgres_server import PostgresServer
from worker.errors import LimitReached
from worker.gateway.job_records import JobRecords, ended_job
from worker.jobs.job import Job, JobRequest, JobTimes


@asynccontextmanager
async def two_replicas(postgres: PostgresServer) -> AsyncIterator[tuple[JobRecords, JobRecords]]:
    database = postgres.new_database()
    replicas = [JobRecords(postgres.config(database)) for _ in range(2)]
    for records in replicas:
        await records.open()
    try:
        yield replicas[0], replicas[1]
    finally:
        for records in replicas:
            await records.close()


def a_job(name: str, owner: str = "shop") -> Job:
    return Job(name, 0, "digest", JobRequest(), {"input": {}}, JobTimes(1), owner=owner)


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
    monkeypatch.setattr("worker.gateway.job_records.FORGOTTEN_AT_ONCE", 3)
    async with two_replicas(postgres) as replicas:
        for number in range(12):
            job = a_job(f"job-{number}")
            await replicas[0].insert(job)
            if number < 11:
                await replicas[0].end(job, {"status": "completed", "timings": {"completed_at_ms": number + 1}})
        gone = await asyncio.gather(*(records.forget_finished_before(11) for records in replicas))
        assert sum(gone) == 10
        assert [await replicas[1].find(f"job-{number}") is not None for number in (9, 10, 11)] == [False, True, True]


def test_the_split_of_a_workers_result_is_kept() -> None:
    result = {"status": "completed", "tuning": {"quality": "same"}, "split": {"engines": 2, "by": "batch"}}
    assert ended_job(a_job("one"), result).tuning == {"quality": "same", "split": {"engines": 2, "by": "batch"}}
