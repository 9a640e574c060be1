"""Jobs and files that a front removes by itself, over a real store and real files."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from darkroom.worker.guard.safe_address import AddressGuard
from darkroom.worker.jobs.expiry import Expiry
from darkroom.worker.jobs.outbox import Outbox
from darkroom.worker.jobs.removal import JobRemoval
from darkroom.worker.outputs.claimed_outputs import ClaimedOutputs
from darkroom.worker.outputs.webhook import WebhookSender
from darkroom.worker.settings.jobs import RetentionConfig
from darkroom.worker.settings.outputs import WebhookConfig
from darkroom.worker.storage.job import Job, JobRequest, JobState, JobTimes
from darkroom.worker.storage.store import JobStore
from darkroom.worker.storage.webhook_rows import WebhookRow, webhook_insert
from tests.worker.databases import opened

CONFIG = RetentionConfig(
    result_ttl_seconds=1000.0,
    output_max_bytes=10_000,
    dead_webhook_ttl_seconds=5000.0,
)


class NoInputs:
    async def forget_unused(self, before_seconds: float, max_bytes: int) -> None: ...


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[JobStore]:
    async with opened(tmp_path / "state") as store:
        yield store


def expiry_of(store: JobStore, config: RetentionConfig = CONFIG, *temporary: Path) -> Expiry:
    webhooks = WebhookConfig(timeout_seconds=3.0)
    outbox = Outbox(store, WebhookSender(AddressGuard()), webhooks)
    return Expiry(store, outbox, config, NoInputs(), ClaimedOutputs(keeps=True), temporary, JobRemoval(store))


async def ended_job(store: JobStore, job_id: str, *, seconds_ago: float = 0, num_bytes: int = 100) -> None:
    job = Job(job_id, store.take_number(), "hash", JobRequest(), {}, JobTimes(0))
    await store.insert(job)
    folder = store.job_directory(job_id)
    folder.mkdir()
    (folder / "a.png").write_bytes(bytes(num_bytes))
    ended = time.time() - seconds_ago
    os.utime(folder, (ended, ended))
    job.end(JobState.FAILED, "over", int(ended * 1000))
    await store.save(job)


def left(store: JobStore) -> list[str]:
    return sorted(os.listdir(store.jobs_directory))


async def test_old_results_go_with_their_files(store: JobStore) -> None:
    await ended_job(store, "old", seconds_ago=1100)
    await ended_job(store, "new", seconds_ago=900)
    await expiry_of(store).remove_expired()
    assert left(store) == ["new"] and await store.find("old") is None


async def test_over_the_sum_the_oldest_lose_their_files_and_stay_known(store: JobStore) -> None:
    for number in range(3):
        await ended_job(store, f"job-{number}", seconds_ago=100 - number, num_bytes=4000)
    await expiry_of(store).remove_expired()
    assert left(store) == ["job-1", "job-2"] and await store.find("job-0") is not None


async def test_folders_of_unknown_jobs_go_at_the_start(store: JobStore) -> None:
    await ended_job(store, "known")
    (store.jobs_directory / "unknown").mkdir()
    await expiry_of(store).remove_orphans()
    assert left(store) == ["known"]


async def test_dead_webhooks_outlive_their_job_until_their_own_time_is_over(store: JobStore, tmp_path: Path) -> None:
    job = Job("one", store.take_number(), "hash", JobRequest(), {}, JobTimes(0))
    await store.insert(job)
    job.end(JobState.FAILED, "over", int((time.time() - 2000) * 1000))
    row = WebhookRow("msg_1", "one", "http://x", b"{}", "planted-secret", 3.0, False, "dead", 15, 1, 1)
    await store.save(job, webhook_insert(replace(row, tried_ms=int((time.time() - 2000) * 1000))))
    await expiry_of(store).remove_expired()
    assert await store.find("one") is None and await store.webhooks.find("msg_1") is not None
    await expiry_of(store, CONFIG.model_copy(update={"dead_webhook_ttl_seconds": 1000.0})).remove_expired()
    assert await store.webhooks.find("msg_1") is None
    for name in ("darkroom.db", "darkroom.db-wal"):
        assert b"planted-secret" not in (tmp_path / "state" / name).read_bytes()


async def test_temporary_files_of_the_engine_go_after_an_hour(store: JobStore, tmp_path: Path) -> None:
    for name, age in (("old.png", 4000), ("new.png", 1000)):
        (tmp_path / "temp").mkdir(exist_ok=True)
        (tmp_path / "temp" / name).touch()
        os.utime(tmp_path / "temp" / name, (time.time() - age,) * 2)
    await expiry_of(store, CONFIG, tmp_path / "temp").remove_expired()
    assert os.listdir(tmp_path / "temp") == ["new.png"]


async def test_a_job_that_begins_under_an_expired_id_keeps_its_folder(
    store: JobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await ended_job(store, "again", seconds_ago=1100)
    forget = store.forget_finished_before

    async def forget_and_begin_anew(time_ms: int) -> list[str]:
        gone = await forget(time_ms)
        await store.insert(Job("again", store.take_number(), "hash", JobRequest(), {}, JobTimes(0)))
        return gone

    monkeypatch.setattr(store, "forget_finished_before", forget_and_begin_anew)
    await expiry_of(store).remove_expired()
    assert left(store) == ["again"]
