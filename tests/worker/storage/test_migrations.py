"""A database of an earlier version is brought to the newest one with all that stands in it."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import fields
from pathlib import Path

import sqlalchemy as sa
from alembic import command
from alembic.config import Config

from darkroom.worker.guard.identity.caller import Identity
from darkroom.worker.jobs.ownership import find_job, id_to_use
from darkroom.worker.settings.api_keys import CUSTOMER_SCOPES
from darkroom.worker.storage import database
from darkroom.worker.storage.job import Credentials, Job, JobRequest, JobTimes
from darkroom.worker.storage.migrations.__main__ import migrate
from darkroom.worker.storage.migrations.tables import SCRIPT, script_of
from darkroom.worker.storage.store import JobStore
from darkroom.worker.storage.webhook_rows import WebhookRow


def database_of_revision(path: Path, revision: str) -> sa.Engine:
    engine = sa.create_engine(f"sqlite:///{path}")
    with engine.connect() as connection:
        config = Config()
        config.set_main_option("script_location", str(Path(database.__file__).parent / "migrations"))
        config.attributes["connection"] = connection
        command.upgrade(config, revision)
        connection.commit()
    return engine


def test_webhooks_of_the_first_version_are_still_owed_and_signed(tmp_path: Path) -> None:
    old = database_of_revision(tmp_path / "a.db", "0001")
    columns = "id, job_id, url, body, secret, timeout_seconds, is_trusted, state, attempts, created_ms, next_at_ms"
    with old.begin() as connection:
        for name, secret, state in (
            ("signed", "'key'", "pending"),
            ("plain", "NULL", "pending"),
            ("over", "NULL", "dead"),
        ):
            values = f"'{name}', 'job', 'http://x', '{{}}', {secret}, 3.0, 0, '{state}', 2, 5, 7"
            connection.execute(sa.text(f"INSERT INTO webhooks ({columns}, last_error) VALUES ({values}, '')"))
    old.dispose()
    engine = database.open_engine(tmp_path / "a.db")
    with engine.connect() as connection:
        found = connection.execute(sa.select(database.WEBHOOKS)).all()
    rows = {row.id: row for row in (WebhookRow(**item._mapping) for item in found)}
    assert (rows["signed"].secret, rows["signed"].secret_source, rows["signed"].tried_ms) == ("key", "request", 7)
    assert rows["plain"].secret_source == "none" and not rows["plain"].has_lost_its_secret
    assert rows["over"].has_lost_its_secret
    engine.dispose()


async def test_jobs_of_the_second_version_have_no_owner_and_are_everybodys(tmp_path: Path) -> None:
    old = database_of_revision(tmp_path / "darkroom.db", "0002")
    with old.begin() as connection:
        values = dict.fromkeys(("request", "prompt", "outputs", "engine_response"), "{}")
        values |= {"id": "old", "body_hash": "x", "state": "completed", "stage": "done", "message": "done"}
        values |= {"request": '{"webhook": null}', "outputs": "[]", "times": '{"queued_at_ms": 1}'}
        numbers = {"number": 1, "attempt": 1, "seq": 5, "finished_ms": 2}
        connection.execute(sa.table("jobs", *map(sa.column, values | numbers)).insert().values(values | numbers))
    old.dispose()
    store = JobStore(tmp_path)
    await store.open()
    try:
        shop, studio = Identity("shop", "", CUSTOMER_SCOPES), Identity("studio", "", CUSTOMER_SCOPES)
        found = [await find_job(store, "old", caller) for caller in (shop, studio)]
        assert [job is not None and (job.owner, job.public_id) for job in found] == [(None, "old")] * 2
        assert await id_to_use(store, "old", "shop") == "old"
    finally:
        await store.close()


async def test_jobs_that_go_back_have_only_fields_that_the_older_version_reads(tmp_path: Path) -> None:
    store = JobStore(tmp_path)
    await store.open()
    request = JobRequest(timeout_seconds=5, parameters={"workflow": "a@1"}, deadline_ms=7, is_split=True)
    job = Job("one", 1, "x", request, {}, JobTimes(1))
    job.credentials = Credentials({"put": {"url": "https://x/{key}"}}, webhook_secret="kept")
    await store.insert(job)
    await store.close()
    migrate(tmp_path / "darkroom.db", "0004")
    engine = sa.create_engine(f"sqlite:///{tmp_path}/darkroom.db")
    with engine.connect() as connection:
        (row,) = connection.execute(sa.text("SELECT request, credentials FROM jobs"))
    engine.dispose()
    later = {"timeout_seconds", "expires_seconds", "wants_previews", "parameters"}
    later |= {"deadline_ms", "deadline_turn_ms", "is_split"}
    assert set(json.loads(row.request)) == {field.name for field in fields(JobRequest)} - later
    assert json.loads(row.credentials) == {"s3": None, "webhook_secret": "kept"}
    await store_opens_again(tmp_path)


async def store_opens_again(folder: Path) -> None:
    store = JobStore(folder)
    await store.open()
    try:
        assert store.jobs["one"].request == JobRequest()
    finally:
        await store.close()


def test_a_database_goes_back_to_the_tables_of_an_earlier_version_and_forth_again(tmp_path: Path) -> None:
    path = tmp_path / "darkroom.db"
    migrate(path)
    engine = sa.create_engine(f"sqlite:///{path}")
    with engine.begin() as connection:
        connection.execute(sa.text("INSERT INTO facts (name, value) VALUES ('kept', 'yes')"))
    tables = sa.inspect(engine)
    assert {"owner", "asked_id"} <= {column["name"] for column in tables.get_columns("jobs")}
    migrate(path, "0001")
    tables = sa.inspect(engine)
    assert not {"owner", "asked_id"} & {column["name"] for column in tables.get_columns("jobs")}
    assert not {"secret_source", "tried_ms"} & {column["name"] for column in tables.get_columns("webhooks")}
    migrate(path)
    with engine.connect() as connection:
        assert connection.execute(sa.text("SELECT version_num FROM alembic_version")).scalar() == database.HEAD_REVISION
        assert connection.execute(sa.text("SELECT value FROM facts WHERE name = 'kept'")).scalar() == "yes"
    engine.dispose()


def test_a_new_database_has_the_tables_that_its_migrations_make(tmp_path: Path) -> None:
    made = tmp_path / "made.db"
    database.open_engine(made).dispose()
    script = SCRIPT.read_text(encoding="utf-8")
    revision = script.rpartition("VALUES ('")[2].partition("'")[0]
    migrated = tmp_path / "migrated.db"
    database_of_revision(migrated, revision).dispose()
    assert script == script_of(migrated), "python -m darkroom.worker.storage.migrations.tables writes it anew"
    with sqlite3.connect(made) as connection:
        assert connection.execute("SELECT version_num FROM alembic_version").fetchall() == [(database.HEAD_REVISION,)]
