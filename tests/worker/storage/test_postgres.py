"""Jobs in PostgreSQL: a server that goes away, one holder of a schema, and a whole front on it."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from pydantic import SecretStr

from darkroom.worker.errors import DatabaseUnreachable, StateUnusable
from darkroom.worker.settings.database import DatabaseConfig
from darkroom.worker.storage.job import Credentials, Job, JobRequest, JobState, JobTimes
from darkroom.worker.storage.job_list import JobFilter
from darkroom.worker.storage.postgres_database import PostgresDatabase, open_postgres, prepare_schema, prepare_tables
from darkroom.worker.storage.store import JobStore
from darkroom.worker.storage.webhook_rows import WebhookRow, webhook_insert
from tests.fakes import FakeEngine, draw, wait
from tests.worker.app.test_recovery import body, front_process
from tests.worker.databases import opened
from tests.worker.postgres_server import PostgresServer
from tests.worker.running_front import RunningFront, running_front, until


@pytest.fixture
def database(postgres: PostgresServer) -> str:
    return postgres.new_database()


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("darkroom.worker.storage.group_commit.RETRY_SECONDS", 0.05)


def a_job(store: JobStore, job_id: str, **more: Any) -> Job:
    job = Job(job_id, store.take_number(), "hash", JobRequest(), {"1": {"class_type": "A"}}, JobTimes(5), **more)
    job.credentials = Credentials(webhook_secret="planted-secret")
    return job


@contextlib.asynccontextmanager
async def stores(
    folder: Path, postgres: PostgresServer, database: str, seconds: float = 30.0
) -> AsyncIterator[JobStore]:
    async with opened(folder, lambda: PostgresDatabase(postgres.config(database), seconds)) as store:
        yield store


async def test_a_new_database_gets_its_schema_and_tables(tmp_path: Path, postgres: PostgresServer) -> None:
    empty = postgres.new_database(is_empty=True)
    async with stores(tmp_path, postgres, empty) as store:
        await store.insert(a_job(store, "one", metadata={"order": 7}))
        (listed,) = await store.page(JobFilter(("", None), (JobState.PENDING,), 0, 10), None, 5)
        assert listed.metadata == {"order": 7}
    with psycopg.connect(postgres.url(empty)) as connection:
        found = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'darkroom'").fetchall()
        triggers = connection.execute("SELECT tgname FROM pg_trigger WHERE tgname LIKE 'jobs_counted%'").fetchall()
    names = {name for (name,) in found if not name.startswith("jobs_2")}  # else that of a day
    others = {"request_rates", "alembic_version", "assets", "facts", "webhooks", "workflows"}
    assert names == {"jobs", "job_index", "jobs_default"} | others
    assert not triggers, "only gateways ask for the number of live jobs"


async def test_workflows_and_assets_are_kept_and_found_as_in_a_file(
    tmp_path: Path, engine: FakeEngine, postgres: PostgresServer, database: str
) -> None:
    form, named = {"file": ("a.png", b"content", "image/png")}, {"file_path": "a\0b.png"}
    async with running_front(tmp_path, engine, database_url=postgres.url(database)) as front:
        for text in ("one", "two"):
            put = await front.http.put("/workflows/portrait", json={"workflow_json": draw(text)})
            assert put.status_code in (200, 201), put.text
        run = await front.http.post("/generate/sync", json={"input": {"workflow": "portrait@1"}})
        assert run.json().get("parameters") == {"workflow": "portrait@1"}, run.text
        assert (await front.http.delete("/workflows/portrait@1")).status_code == 200
        assert (await front.http.get("/workflows/portrait@1")).status_code == 404
        assert (await front.http.put("/workflows/portrait", json={"workflow_json": draw("one")})).json()["version"] == 3
        first = (await front.http.post("/api/v2/assets", files=form, data=named)).json()
        again = (await front.http.post("/api/v2/assets", files=form, data=named)).json()
        assert (again["id"], first["created_new"], again["created_new"]) == (first["id"], True, False)
        for place in ("/api/v2/assets/%00", "/result/%00", "/api/v2/jobs/%00", "/workflows/%00"):
            assert (await front.http.get(place)).status_code == 404, place
        assert (await front.http.get("/jobs?owner=%00")).json()["jobs"] == []
        unknown = await front.http.post("/api/v2/assets/from-hash", content=b'{"hash": "\\u0000"}')
        assert unknown.status_code == 404, unknown.text
        await front.front.services.files.assets.forget_unused(2**60)
        assert (await front.http.get(f"/api/v2/assets/{first['id']}")).status_code == 404


async def test_while_the_server_is_gone_ends_wait_and_new_jobs_are_refused(
    tmp_path: Path, postgres: PostgresServer, database: str
) -> None:
    async with stores(tmp_path, postgres, database) as store:
        job = a_job(store, "one")
        await store.insert(job)
        postgres.kill()
        try:
            with pytest.raises(StateUnusable):
                await store.insert(a_job(store, "two"))
            assert list(store.jobs) == ["one"] and store.database.problem
            with pytest.raises(DatabaseUnreachable) as refusal:
                await store.find("unknown")
            assert "planted" not in refusal.value.message
            job.end(JobState.FAILED, "with a \0 in it", 9)
            row = WebhookRow("msg_1", job.id, "http://x", b"{}", None, 3.0, False, "pending", 0, 1, 1)
            ended = store.save(job, webhook_insert(row))
            await asyncio.sleep(0.2)
            assert not ended.done()
        finally:
            postgres.start()
        await asyncio.wait_for(ended, 60)
        assert not store.database.problem and await store.webhooks.due(now_ms=2) == [row]
        await store.insert(a_job(store, "two"))
    async with stores(tmp_path / "other", postgres, database) as again:
        assert list(again.jobs) == ["two"]


async def test_a_commit_whose_reply_was_lost_leaves_nothing_that_was_refused_and_nothing_twice(
    tmp_path: Path, postgres: PostgresServer, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stores(tmp_path, postgres, database) as store:
        job = a_job(store, "one")
        await store.insert(job)
        commit = store._commits.commit_all

        def commit_and_lose_the_reply(*arguments: Any) -> None:
            monkeypatch.setattr(store._commits, "commit_all", commit)
            commit(*arguments)
            postgres.close_sessions(database)
            store.database.connected().exec_driver_sql("SELECT 1")

        monkeypatch.setattr(store._commits, "commit_all", commit_and_lose_the_reply)
        with pytest.raises(StateUnusable):
            await store.insert(a_job(store, "refused"))

        async def is_back() -> bool:
            return not store.database.problem

        await until(is_back)
        assert await store.find("refused") is None, "its caller was told to send it again"
        await store.insert(a_job(store, "refused"))
        monkeypatch.setattr(store._commits, "commit_all", commit_and_lose_the_reply)
        job.end(JobState.FAILED, "over", 9)
        row = WebhookRow("msg_1", job.id, "http://x", b"{}", None, 3.0, False, "pending", 0, 1, 1)
        await asyncio.wait_for(store.save(job, webhook_insert(row)), 60)
        assert await store.webhooks.due(now_ms=2) == [row]


async def test_a_schema_has_one_holder(tmp_path: Path, postgres: PostgresServer, database: str) -> None:
    async with stores(tmp_path / "first", postgres, database):
        with pytest.raises(StateUnusable, match="in use by another worker"):
            async with stores(tmp_path / "second", postgres, database, seconds=0):
                pass


async def test_a_worker_whose_schema_was_taken_meanwhile_writes_nothing_more(
    tmp_path: Path, postgres: PostgresServer, database: str
) -> None:
    stopped = asyncio.Event()
    first = JobStore(
        tmp_path / "first", database=PostgresDatabase(postgres.config(database)), on_taken_over=stopped.set
    )
    await first.open()
    job = a_job(first, "one")
    await first.insert(job)
    with psycopg.connect(postgres.url(database)) as connection:  # as a second worker leaves it
        connection.execute("""UPDATE darkroom.facts SET value = '"another"' WHERE name = 'holder'""")
    postgres.close_sessions(database)
    job.end(JobState.FAILED, "over", 9)
    ended = first.save(job)
    await asyncio.wait_for(stopped.wait(), 60)
    await first.close()
    assert not ended.done() or isinstance(ended.exception(), StateUnusable)
    async with stores(tmp_path / "second", postgres, database) as second:
        assert list(second.jobs) == ["one"]


async def test_a_server_that_never_comes_is_named_without_its_password(tmp_path: Path) -> None:
    config = DatabaseConfig(url=SecretStr("postgresql://me:planted-secret@127.0.0.1:1/jobs"))
    with pytest.raises(StateUnusable, match="127.0.0.1:1/jobs cannot be reached") as refusal:
        async with opened(tmp_path, lambda: PostgresDatabase(config, open_seconds=0)):
            pass
    assert "planted" not in refusal.value.message


def test_a_server_that_goes_while_gateways_prepare_their_tables_is_asked_again(
    postgres: PostgresServer, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = postgres.config(database)
    engine = open_postgres(config)
    num_calls = 0

    def prepare_and_lose_the_server(connection: sa.Connection, config: DatabaseConfig) -> None:
        nonlocal num_calls
        num_calls += 1
        if num_calls == 1:
            connection.exec_driver_sql("SELECT 1")
            postgres.close_sessions(database)
        prepare_tables(connection, config)

    monkeypatch.setattr("darkroom.worker.storage.postgres_database.prepare_tables", prepare_and_lose_the_server)
    prepare_schema(engine, config)
    engine.dispose()
    assert num_calls == 2


async def ready(front: RunningFront) -> dict[str, Any]:
    found: dict[str, Any] = (await front.http.get("/ready")).json()
    return found


async def test_a_front_goes_on_over_a_database_that_is_gone_for_a_while(
    tmp_path: Path, engine: FakeEngine, postgres: PostgresServer, database: str
) -> None:
    async with running_front(tmp_path, engine, database_url=postgres.url(database)) as front:
        assert (await front.sync(draw(), request_id="before")).status_code == 200
        await front.http.post("/generate", json=body(wait(), "running"))
        await front.until("running", "generating")
        postgres.kill()
        try:
            refused = await front.sync(draw(), request_id="during")
            assert refused.status_code == 503 and refused.json()["error"]["code"] == "database_unreachable"
            assert "Retry-After" in refused.headers
            shown = await ready(front)
            assert shown["status"] == "not ready" and shown["database"]["state"] == "unreachable"
            engine.release()
        finally:
            postgres.start()
        assert (await front.until("running", "completed"))["output"]

        async def is_ready() -> bool:
            return bool((await ready(front))["status"] == "ready")

        await until(is_ready)
        assert (await front.sync(draw(), request_id="during")).status_code == 200
        listed = (await front.http.get("/jobs")).json()["jobs"]
        assert [(job["id"], job["status"]) for job in listed] == [
            ("during", "completed"), ("running", "completed"), ("before", "completed"),
        ]  # fmt: skip
        assert (await front.http.delete("/jobs/before")).status_code == 200
        assert front.front.services.jobs.pipeline.check_integrity() == []
    assert len(engine.runs) == 3


@pytest.mark.slow
async def test_jobs_survive_kill_9_of_the_worker(
    tmp_path: Path, engine: FakeEngine, postgres: PostgresServer, database: str
) -> None:
    async with front_process(tmp_path, engine, DATABASE_URL=postgres.url(database)) as front:
        await front.http.post("/generate", json=body(wait(), "one"))
        await front.send(signal.SIGKILL)
    engine.release_all()
    async with front_process(tmp_path, engine, DATABASE_URL=postgres.url(database)) as front:
        await front.until_status("one", "completed")
