"""A reply about a job is on disk, whatever happens to the job while the reply is made."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from fastapi import Request

from darkroom.worker.api.results import reply_with
from darkroom.worker.storage.job import Job, JobRequest, JobState, JobTimes
from tests.worker.databases import opened


async def test_a_change_that_comes_while_a_reply_waits_for_the_disk_is_not_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path) as store:
        job = Job("one", store.take_number(), "hash", JobRequest(), {"1": {}}, JobTimes(5))
        await store.insert(job)
        job.move_to(JobState.PROCESSING, "first")
        store.save_soon(job)
        settle = store.settle

        async def settle_while_it_goes_on(of: Job) -> None:
            await settle(of)
            of.move_to(JobState.GENERATING, "second")

        monkeypatch.setattr(store, "settle", settle_while_it_goes_on)
        services: Any = SimpleNamespace(jobs=SimpleNamespace(store=store))
        request = cast(Request, SimpleNamespace(app=SimpleNamespace(state=SimpleNamespace(services=services))))
        shown = json.loads(bytes((await reply_with(job, request)).body))
        stored = await store.stored("one")
        assert stored is not None
        assert (shown["status"], shown["message"]) == ("processing", "first") == (stored.state, stored.message)
