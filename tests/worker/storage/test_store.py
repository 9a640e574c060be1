"""Jobs on disk: kill -9, full disks, expiry, credentials erased, one owner of the directory."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic.config import Config
from alembic.script import ScriptDirectory

from darkroom.worker.errors import StateUnusable
from darkroom.worker.storage import database
from darkroom.worker.storage.group_commit import ChangeUnwritable
from darkroom.worker.storage.job import Credentials, Job, JobRequest, JobState, JobTimes, WebhookTarget
from darkroom.worker.storage.store import JobStore
from darkroom.worker.storage.webhook_rows import WebhookRow, webhook_insert
from tests.worker.databases import NewDatabase, give_database, opened

WRITER = """
import asyncio, sys
from pathlib import Path
from darkroom.worker.storage.job import Job, JobRequest, JobTimes
from darkroom.worker.storage import database
from darkroom.worker.storage.group_commit import ChangeUnwritable
from darkroom.worker.storage.store import JobStore

async def main():
    store = JobStore(Path(sys.argv[1]))
    await store.open()
    for number in range(100000):
        job = Job(f"job-{number}", store.take_number(), "h", JobRequest(), {"1": {}}, JobTimes(1))
        await store.insert(job)
        print(job.id, flush=True)

asyncio.run(main())
"""


def a_job(store: JobStore, job_id: str = "one") -> Job:
    request = JobRequest(modifier="Text2Image", webhook=WebhookTarget("http://x", 3.0, {"a": 1}))
    kept = Credentials({"s3": {"secret_access_key": "planted-secret"}}, webhook_secret="planted-too")
    return Job(job_id, store.take_number(), "hash", request, {"1": {"class_type": "A"}}, JobTimes(5), kept)


async def test_a_job_survives_a_restart_as_it_was(tmp_path: Path, new_database: NewDatabase) -> None:
    async with opened(tmp_path, new_database) as store:
        job = a_job(store)
        await store.insert(job)
        job.move_to(JobState.PROCESSING, "now")
        await store.save(job)
    async with opened(tmp_path, new_database) as again:
        found = again.jobs["one"]
        assert found.is_recovered
        found.is_recovered = False
        assert found == job
        assert again.take_number() == job.number + 1


async def test_what_was_acknowledged_survives_kill_9_of_the_writer(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True)  # noqa: ASYNC220 - it is killed
    assert child.stdout is not None
    acknowledged = [child.stdout.readline().strip() for _ in range(50)]
    child.send_signal(signal.SIGKILL)
    acknowledged += child.stdout.read().split()
    child.wait()
    async with opened(tmp_path) as store:
        assert set(acknowledged) <= set(store.jobs)


async def test_an_end_erases_the_credentials_and_owes_the_webhook_in_one_transaction(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        job = a_job(store)
        await store.insert(job)
        job.end(JobState.CANCELLED, "over", 9)
        row = WebhookRow("msg_1", job.id, "http://x", b"{}", "planted-too", 3.0, False, "pending", 0, 1, 1)
        await store.save(job, webhook_insert(row))
        assert await store.webhooks.due(now_ms=2) == [row]
        assert store.jobs == {} and store.check_integrity() == []
        await store.forget_finished_before(1)  # what the front does every minute
        for name in ("darkroom.db", "darkroom.db-wal"):
            assert b"planted-secret" not in (tmp_path / name).read_bytes()


async def test_an_end_erases_the_secrets_in_addresses_of_the_pages_workflow(tmp_path: Path) -> None:
    page = {"nodes": [{"properties": {"models": [{"url": "https://models.example/a?token=planted-secret"}]}}]}
    async with opened(tmp_path) as store:
        job = a_job(store)
        job.request = replace(job.request, extra={"extra_pnginfo": {"workflow": page}})
        await store.insert(job)
        job.end(JobState.CANCELLED, "over", 9)
        await store.save(job)
        await store.forget_finished_before(1)
        for name in ("darkroom.db", "darkroom.db-wal"):
            assert b"planted-secret" not in (tmp_path / name).read_bytes()
        found = await store.find(job.id)
        assert found is not None and "https://models.example/a?erased" in str(found.request.extra)


async def limit_pages(store: JobStore, num_pages: int) -> None:
    """A small number is a full disk for SQLite: it keeps the pages it has and gets no more."""
    await store.database.call(lambda: store.database.connected().exec_driver_sql(f"PRAGMA max_page_count={num_pages}"))


async def test_on_a_full_disk_new_jobs_are_refused_and_ends_are_written_once_there_is_room(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        job, other = a_job(store), a_job(store, "two")
        await store.insert(job)
        await limit_pages(store, 1)
        other.prompt = {"1": "x" * 100_000}
        with pytest.raises(StateUnusable) as refusal:
            await store.insert(other)
        assert "planted" not in refusal.value.message and "INSERT" not in refusal.value.message
        assert list(store.jobs) == ["one"]
        job.end(JobState.FAILED, "no" * 100_000, 9)
        row = WebhookRow("msg_1", job.id, "http://x", b"{}", None, 3.0, False, "pending", 0, 1, 1)
        ended = store.save(job, webhook_insert(row))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(ended), 0.2)
        assert await store.webhooks.due(now_ms=2) == []
        await limit_pages(store, 100_000)
        await ended
        assert await store.webhooks.due(now_ms=2) == [row]
    async with opened(tmp_path) as again:
        assert again.jobs == {}


async def test_a_job_that_cannot_be_written_takes_no_other_with_it(
    tmp_path: Path, new_database: NewDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("darkroom.worker.storage.group_commit.RETRY_SECONDS", 0.01)
    async with opened(tmp_path, new_database) as store:
        good, bad, unwritable = a_job(store), a_job(store, "two"), a_job(store, "three")
        unwritable.prompt = {"1": object()}
        inserted = await asyncio.gather(*map(store.insert, (good, unwritable, bad)), return_exceptions=True)
        assert [type(entry) for entry in inserted] == [type(None), TypeError, type(None)]
        assert list(store.jobs) == ["one", "two"]
        row = WebhookRow("msg_1", good.id, "http://x", b"{}", None, 3.0, False, "pending", 0, 1, 1)
        good.end(JobState.FAILED, "over", 9)
        bad.end(JobState.CANCELLED, "over", 9)
        bad.outputs = ({"size": object()},)
        ends = await asyncio.gather(store.save(bad), store.save(good, webhook_insert(row)), return_exceptions=True)
        assert [type(entry) for entry in ends] == [ChangeUnwritable, type(None)]
        assert await store.webhooks.due(now_ms=2) == [row]
    async with opened(tmp_path, new_database) as again:
        assert list(again.jobs) == ["two"]


async def test_a_change_that_fails_for_a_while_is_written_once_it_can_be(
    tmp_path: Path, new_database: NewDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("darkroom.worker.storage.group_commit.RETRY_SECONDS", 0.01)
    async with opened(tmp_path, new_database) as store:
        job = a_job(store)
        await store.insert(job)
        commit, num_tries = store._commits.commit, 0

        def fail_twice(*rows: Any) -> None:
            nonlocal num_tries
            num_tries += 1
            if num_tries <= 2:
                raise sa.exc.DatabaseError("", {}, ValueError("the database disk image is malformed"))
            commit(*rows)

        monkeypatch.setattr(store._commits, "commit", fail_twice)
        job.end(JobState.FAILED, "over", 9)
        row = WebhookRow("msg_1", job.id, "http://x", b"{}", None, 3.0, False, "pending", 0, 1, 1)
        await asyncio.wait_for(store.save(job, webhook_insert(row)), 60)
        assert await store.webhooks.due(now_ms=2) == [row]


async def test_an_id_that_has_expired_can_be_used_again_webhook_and_all(
    tmp_path: Path, new_database: NewDatabase
) -> None:
    async with opened(tmp_path, new_database) as store:
        row = WebhookRow("msg_1", "one", "http://x", b"{}", None, 3.0, False, "delivered", 0, 1, 1)
        for _ in range(2):
            job = a_job(store)
            await store.insert(job)
            job.end(JobState.FAILED, "no", 10)
            await store.save(job, webhook_insert(row))
            assert await store.forget_finished_before(11) == ["one"]


async def test_what_changes_during_a_commit_is_on_disk_after_the_close(tmp_path: Path) -> None:
    store = JobStore(tmp_path)
    await store.open()
    job = a_job(store)
    await store.insert(job)
    held, first = threading.Event(), store.facts.set("first", 1)
    blocker = asyncio.ensure_future(store.database.call(held.wait))
    writing = asyncio.ensure_future(first)
    await asyncio.sleep(0.05)  # its commit waits for the thread
    job.move_to(JobState.PROCESSING, "now")
    store.save_soon(job)
    closing = asyncio.ensure_future(store.close())
    await asyncio.sleep(0)
    held.set()
    await asyncio.gather(blocker, writing, closing)
    again = JobStore(tmp_path)
    await again.open()
    assert again.jobs["one"].state is JobState.PROCESSING
    await again.close()


async def test_an_ended_job_keeps_its_prompt_on_disk_only(tmp_path: Path, new_database: NewDatabase) -> None:
    async with opened(tmp_path, new_database) as store:
        job = a_job(store)
        await store.insert(job)
        job.end(JobState.FAILED, "no", 10)
        await store.save(job)
        assert job.prompt == {}
        stored = await store.stored("one")
        assert stored is not None and stored.prompt == {"1": {"class_type": "A"}}


async def test_who_only_looks_is_not_held_up_by_a_disk_that_refuses(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        job = a_job(store)
        await store.insert(job)
        await limit_pages(store, 1)
        job.move_to(JobState.PROCESSING, "x" * 100_000)
        written = store.save(job)
        async with asyncio.timeout(60):
            await store.settle(job)
        assert not written.done()
        await limit_pages(store, 100_000)
        await store.settle(job)
        stored = await store.stored("one")
        assert stored is not None and stored.state is JobState.PROCESSING


async def test_a_second_front_is_refused_with_the_process_that_holds_the_directory(tmp_path: Path) -> None:
    async with opened(tmp_path):
        with pytest.raises(StateUnusable, match=f"process {os.getpid()}"):
            await JobStore(tmp_path).open()


async def test_the_state_directory_is_for_its_owner_alone(tmp_path: Path) -> None:
    async with opened(tmp_path / "state"):
        assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o700


async def test_ended_jobs_are_found_until_they_expire(tmp_path: Path, new_database: NewDatabase) -> None:
    async with opened(tmp_path, new_database) as store:
        job = a_job(store)
        await store.insert(job)
        job.end(JobState.FAILED, "no", 10)
        await store.save(job)
        assert await store.forget_finished_before(10) == []
        assert (await store.find("one")) is job
        assert await store.forget_finished_before(11) == ["one"]
        assert await store.find("one") is None


async def test_many_saves_at_once_are_few_commits(tmp_path: Path, new_database: NewDatabase) -> None:
    async with opened(tmp_path, new_database) as store:
        await asyncio.gather(*(store.insert(a_job(store, f"job-{number}")) for number in range(200)))
        assert len(store.jobs) == 200
        await store.facts.set("answer", {"n": 42})
        assert await store.facts.get("answer") == {"n": 42}


def test_the_newest_migration_is_the_one_the_store_asks_for() -> None:
    folder = Path(database.__file__).parent / "migrations"
    config = Config()
    config.set_main_option("script_location", str(folder))
    assert ScriptDirectory.from_config(config).get_current_head() == database.HEAD_REVISION


def test_the_migrated_tables_are_those_the_store_uses(tmp_path: Path) -> None:
    engine = database.open_engine(tmp_path / "a.db")
    inspector = sa.inspect(engine)
    for table in database.METADATA.tables.values():
        assert {column["name"] for column in inspector.get_columns(table.name)} == set(table.columns.keys())
    engine.dispose()


async def test_turns_hold_over_a_restart_and_over_a_clock_that_is_set_back(tmp_path: Path) -> None:
    give_database(tmp_path / "state")

    def job_at(store: JobStore, time_ms: int, priority: int = 0) -> Job:
        number = store.take_number()
        request = JobRequest(priority=priority)
        return Job(f"job-{number}", number, "hash", request, {"1": {"class_type": "A"}}, JobTimes(time_ms))

    store = JobStore(tmp_path / "state", priority_step_seconds=1.0)
    await store.open()
    for time_ms, priority in ((50_000, 0), (10_000, 0), (10_000, 2), (50_500, 0), (50_500, 1)):
        await store.insert(job_at(store, time_ms, priority))
    before = sorted(store.jobs.values(), key=lambda job: job.order)
    await store.close()
    again = JobStore(tmp_path / "state", priority_step_seconds=1.0)
    await again.open()
    after = sorted(again.jobs.values(), key=lambda job: job.order)
    await again.close()
    assert [job.number for job in before] == [3, 5, 1, 2, 4]
    assert [job.order for job in after] == [job.order for job in before]


async def test_a_clock_that_was_set_back_holds_up_no_webhook(tmp_path: Path, new_database: NewDatabase) -> None:
    hour_ms = 3600 * 1000
    rows = [
        WebhookRow(f"msg_{hours}", "one", "http://x", b"{}", None, 3.0, False, "pending", 1, 1, hours * hour_ms)
        for hours in (0, 5, 30)
    ]
    async with opened(tmp_path, new_database) as store:
        await store.write(*map(webhook_insert, rows))
        assert [row.id for row in await store.webhooks.due(now_ms=1)] == ["msg_0", "msg_30"]
