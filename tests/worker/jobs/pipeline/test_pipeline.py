"""The pipeline at the moments when two things want the same job, over a real store; no engine is up."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from darkroom.worker.api.sync_waiters import SyncWaiters
from darkroom.worker.engines.client.client import EngineClient
from darkroom.worker.engines.pool import EnginePool
from darkroom.worker.jobs.pipeline.parts import PipelineHooks, PipelineLimits, PipelineParts
from darkroom.worker.jobs.pipeline.pipeline import Pipeline
from darkroom.worker.jobs.protocols import JobInputs, JobOutputs
from darkroom.worker.storage.job import Job, JobRequest, JobState, JobTimes
from darkroom.worker.storage.store import JobStore
from tests.worker.databases import opened


class NoInputs:
    def release(self, job_id: str) -> None: ...


def pipeline_of(store: JobStore, ended: list[str]) -> Pipeline:
    pool = EnginePool([EngineClient("http://127.0.0.1:1")])
    pool.set_up(pool.clients[0], False)
    return Pipeline(
        store,
        pool,
        PipelineParts(cast(JobInputs, NoInputs()), cast(JobOutputs, None)),
        PipelineLimits(60.0, 2),
        PipelineHooks(lambda job, kept: [], lambda job: None, lambda job: ended.append(job.id)),
    )


def a_job(store: JobStore) -> Job:
    prompt: Mapping[str, Any] = {"1": {"class_type": "A", "inputs": {}}}
    return Job("one", store.take_number(), "hash", JobRequest(), prompt, JobTimes(5))


@pytest.mark.parametrize("has_ended_before", [True, False])
async def test_a_job_that_is_cancelled_while_it_is_being_admitted_ends_once(
    tmp_path: Path, has_ended_before: bool
) -> None:
    async with opened(tmp_path) as store:
        ended: list[str] = []
        pipeline = pipeline_of(store, ended)
        job = a_job(store)
        await store.insert(job)
        assert pipeline.cancel(job)
        if has_ended_before:
            await pipeline.wait_for_end(job)
        pipeline.start(job)  # as the request does that made it
        async with asyncio.timeout(60):
            await pipeline.wait_for_end(job)
            await asyncio.sleep(0.05)
        assert (job.state, ended, pipeline.check_integrity()) == (JobState.CANCELLED, ["one"], [])
        assert [task for task in asyncio.all_tasks() if task.get_name() == "job-one"] == []


async def test_a_job_whose_end_cannot_be_stored_fails_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("darkroom.worker.storage.group_commit.RETRY_SECONDS", 0.01)
    async with opened(tmp_path) as store:
        ended: list[str] = []
        pipeline = pipeline_of(store, ended)
        job = a_job(store)
        await store.insert(job)
        job.outputs = ({"size": object()},)
        pipeline.cancel(job)
        async with asyncio.timeout(60):
            await pipeline.wait_for_end(job)
        assert (job.state, ended, pipeline.check_integrity()) == (JobState.FAILED, ["one"], [])
        stored = await store.stored("one")
        assert stored is not None and stored.failure is not None
        assert stored.failure.message == "The end of the job cannot be stored; the log has the reason"


async def test_a_job_that_is_cancelled_while_the_front_drains_does_not_go_on_at_the_next_start(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        ended: list[str] = []
        pipeline = pipeline_of(store, ended)
        job = a_job(store)
        await store.insert(job)
        pipeline.start(job)
        await pipeline.drain(0)
        with SyncWaiters(pipeline, 0).waiting(job, is_owner=True):
            pass  # a client who was told that the job is kept
        await asyncio.sleep(0.01)
        assert pipeline.is_deferred(job)
        assert pipeline.cancel(job)
        async with asyncio.timeout(60):
            await pipeline.wait_for_end(job)
        assert (job.state, ended) == (JobState.CANCELLED, ["one"])
    async with opened(tmp_path) as again:
        assert again.jobs == {}


async def test_a_job_that_is_cancelled_in_the_moment_in_which_the_front_begins_to_drain_ends(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        ended: list[str] = []
        pipeline = pipeline_of(store, ended)
        job = a_job(store)
        await store.insert(job)
        draining = asyncio.create_task(pipeline.drain(5))
        pipeline.start(job)
        pipeline.cancel(job)
        async with asyncio.timeout(60):
            await asyncio.gather(draining, pipeline.wait_for_end(job))
        assert (job.state, ended) == (JobState.CANCELLED, ["one"])
