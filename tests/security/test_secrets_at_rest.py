"""Secrets of a request leave the state directory, write-ahead log included, when its delivery has ended."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from darkroom.worker.errors import WebhookNotReady
from darkroom.worker.guard.url_secrets import is_erased, without_url_secrets
from darkroom.worker.jobs.outbox import Outbox
from darkroom.worker.outputs.webhook import DeliveryOutcome
from darkroom.worker.settings.outputs import WebhookConfig
from darkroom.worker.storage.job import Credentials, Job, JobRequest, JobState, JobTimes, WebhookTarget
from darkroom.worker.storage.store import JobStore
from darkroom.worker.storage.webhook_rows import WebhookRow, webhook_insert
from tests.worker.databases import opened

PLANTED = b"planted"
SOON_SECONDS = 60.0


def job_with_secrets(store: JobStore) -> Job:
    webhook = WebhookTarget("https://u:planted-1@hooks.example/in?token=planted-2", 3.0, {})
    kept = Credentials({"s3": {"secret_access_key": "planted-3"}}, webhook_secret="planted-4")
    image = "https://user:planted-5@files.example/a.png?X-Amz-Signature=planted-6#planted-7"
    prompt = {"1": {"class_type": "LoadImage", "inputs": {"image": image, "more": [f"see {image}, and"]}}}
    return Job("one", store.take_number(), "hash", JobRequest(webhook=webhook), prompt, JobTimes(5), kept)


def row_with_secrets(job: Job) -> WebhookRow:
    assert job.request.webhook is not None
    return WebhookRow("hook", job.id, job.request.webhook.url, b"{}", "planted-8", 1.0, False, "pending", 0, 0, 2**40)


def files_with(directory: Path, text: bytes) -> list[str]:
    return [path.name for path in sorted(directory.rglob("*")) if path.is_file() and text in path.read_bytes()]


async def wait_until_gone(directory: Path) -> None:
    for _ in range(round(SOON_SECONDS / 0.1)):
        if not files_with(directory, PLANTED):
            return
        await asyncio.sleep(0.1)
    assert files_with(directory, PLANTED) == []


async def end(store: JobStore, job: Job) -> WebhookRow:
    row = row_with_secrets(job)
    job.move_to(JobState.PROCESSING, "now")
    await store.save(job)
    job.end(JobState.CANCELLED, "over", 9)
    await store.save(job, webhook_insert(row))
    return row


async def test_nothing_of_a_request_is_left_in_any_file_once_its_webhook_is_delivered(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        job = job_with_secrets(store)
        await store.insert(job)
        assert files_with(tmp_path, PLANTED), "the job is on disk with all that it needs to run after a restart"
        row = await end(store, job)
        await store.webhooks.update(replace(row, state="delivered"))
        await wait_until_gone(tmp_path)
        found = await store.find("one")
        assert found is not None and found.state is JobState.CANCELLED


@pytest.mark.parametrize("store_name", ["s3", "put", "hf"])
async def test_the_secret_of_any_store_is_erased_from_the_log(tmp_path: Path, store_name: str) -> None:
    async with opened(tmp_path) as store:
        kept = Credentials({store_name: {"secret": "planted-1"}})
        job = Job("one", store.take_number(), "hash", JobRequest(), {}, JobTimes(5), kept)
        await store.insert(job)
        assert files_with(tmp_path, PLANTED)
        job.move_to(JobState.PROCESSING, "now")
        await store.save(job)
        job.end(JobState.CANCELLED, "over", 9)
        await store.save(job)
        await wait_until_gone(tmp_path)


async def test_a_killed_worker_s_log_is_erased_at_the_next_start(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        job = job_with_secrets(store)
        await store.insert(job)
        row = await end(store, job)
        await store.webhooks.update(replace(row, state="delivered"))
        copy = tmp_path / "copy"
        copy.mkdir()
        for name in ("darkroom.db", "darkroom.db-wal"):  # as a kill at this moment would leave them
            (copy / name).write_bytes((tmp_path / name).read_bytes())
    assert files_with(copy, PLANTED)
    async with opened(copy):
        assert files_with(copy, PLANTED) == []


async def test_a_pending_delivery_keeps_its_address(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        job = job_with_secrets(store)
        await store.insert(job)
        row = await end(store, job)
        stored = await store.webhooks.find(row.id)
        assert stored is not None and stored.url == row.url and stored.secret == "planted-8"


async def test_a_delivered_webhook_is_sent_again_only_with_its_whole_address(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        job = job_with_secrets(store)
        await store.insert(job)
        row = await end(store, job)
        await store.webhooks.update(replace(row, state="delivered"))
        outbox = Outbox(store, NoSender(), WebhookConfig(timeout_seconds=1.0))
        for wrong in ("", "https://elsewhere.example/in?token=x"):
            with pytest.raises(WebhookNotReady, match="hooks.example"):
                await outbox.redeliver(row.id, "", wrong)
        again = await outbox.redeliver(row.id, "", row.url)
        assert again.url == row.url and again.state == "pending"


@pytest.mark.parametrize(
    ("url", "erased"),
    [
        ("https://host/path", "https://host/path"),
        ("https://u:p@host:81/path", "https://erased@host:81/path"),
        ("s3://bucket/key?versionId=1", "s3://bucket/key?erased"),
        ("https://host#f", "https://host?erased"),
        ("two: http://a/?x and <http://b@c/>", "two: http://a/?erased and <http://erased@c/>"),
        ("what? ever", "what? ever"),
    ],
)
def test_users_and_queries_of_urls_are_erased_and_nothing_else(url: str, erased: str) -> None:
    assert without_url_secrets(url) == erased
    assert without_url_secrets(erased) == erased
    assert is_erased(without_url_secrets("https://u@h/")) and not is_erased("https://h/")


class NoSender:
    async def deliver(self, row: WebhookRow) -> DeliveryOutcome:
        raise AssertionError("nothing is sent here")
