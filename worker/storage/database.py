"""The job database: its tables, its opening, and the conversion of jobs to rows.

Blocking; `store.py` calls it on its thread.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import subprocess
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, cast

import sqlalchemy as sa
import structlog
from sqlalchemy import event

from darkroom.start import command_of
from darkroom.worker.errors import StateUnusable
from darkroom.worker.outputs.options import OutputOptions
from darkroom.worker.storage.database_damage import WAY_OUT, check_content, check_file, damage_of, damaged
from darkroom.worker.storage.job import (
    Credentials,
    Job,
    JobFailure,
    JobRequest,
    JobState,
    JobTimes,
    Stage,
    WebhookTarget,
)
from darkroom.worker.storage.migrations.tables import create_tables

HEAD_REVISION = "0013"
"""The newest migration. A test compares it with the versions folder."""

log = structlog.get_logger("jobs.store")

METADATA = sa.MetaData()
JOBS = sa.Table(
    "jobs",
    METADATA,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("number", sa.BigInteger),
    *(sa.Column(name, sa.Text) for name in ("body_hash", "request", "prompt", "credentials", "state", "stage")),
    sa.Column("attempt", sa.Integer),
    sa.Column("seq", sa.Integer),
    *(sa.Column(name, sa.Text) for name in ("message", "outputs", "engine_response", "failure", "times")),
    sa.Column("finished_ms", sa.BigInteger),
    sa.Column("owner", sa.Text),
    sa.Column("asked_id", sa.Text),
    sa.Column("tuning", sa.Text),
    sa.Column("queued_ms", sa.BigInteger),
    sa.Column("metadata", sa.Text),
)
JOB_INDEX = sa.Table(
    "job_index",
    sa.MetaData(),
    sa.Column("id", sa.Text, primary_key=True),
    *(sa.Column(name, sa.BigInteger) for name in ("number", "queued_ms")),
    *(sa.Column(name, sa.Text) for name in ("owner", "state", "stage")),
    sa.Column("finished_ms", sa.BigInteger),
)
"""Columns of all jobs beside their partitions. PostgreSQL alone has it, and keeps it equal to `jobs` by itself."""

WEBHOOKS = sa.Table(
    "webhooks",
    METADATA,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("job_id", sa.Text),
    sa.Column("url", sa.Text),
    sa.Column("body", sa.LargeBinary),
    sa.Column("secret", sa.Text),
    sa.Column("timeout_seconds", sa.Float),
    sa.Column("is_trusted", sa.Boolean),
    sa.Column("state", sa.Text),
    sa.Column("attempts", sa.Integer),
    sa.Column("created_ms", sa.BigInteger),
    sa.Column("next_at_ms", sa.BigInteger),
    sa.Column("last_error", sa.Text),
    sa.Column("secret_source", sa.Text),
    sa.Column("tried_ms", sa.BigInteger),
)
WORKFLOWS = sa.Table(
    "workflows",
    METADATA,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("version", sa.Integer, primary_key=True),
    sa.Column("digest", sa.Text),
    sa.Column("content", sa.Text),
    sa.Column("created_ms", sa.BigInteger),
)
ASSETS = sa.Table(
    "assets",
    METADATA,
    sa.Column("id", sa.Text, primary_key=True),
    *(sa.Column(name, sa.Text) for name in ("owner", "hash")),
    sa.Column("size_bytes", sa.BigInteger),
    *(sa.Column(name, sa.Text) for name in ("content_type", "file_path")),
    *(sa.Column(name, sa.BigInteger) for name in ("created_ms", "used_ms")),
)
FACTS = sa.Table("facts", METADATA, sa.Column("name", sa.Text, primary_key=True), sa.Column("value", sa.Text))
FACT_UPSERT = sa.text(
    "INSERT INTO facts (name, value) VALUES (:name, :value) ON CONFLICT (name) DO UPDATE SET value = excluded.value"
)
FACT_DELETE = sa.text("DELETE FROM facts WHERE name = :gone_name")


def _report_missing(path: Path) -> None:
    """Log that there is no database where jobs have left their folders."""
    num_folders = sum(1 for _ in path.parent.glob("jobs/*"))
    if num_folders:
        log.warning("job database missing", file=str(path), job_folders=num_folders, remedy=WAY_OUT)


def check_database(path: Path) -> None:
    """Check that a job database can be used, where there is one. Raises StateUnusable with what to do."""
    if not path.exists():
        _report_missing(path)
        return
    check_file(path)
    engine = sa.create_engine(f"sqlite:///{path}", hide_parameters=True)
    try:
        with readable(path):
            check_content(path)
            revision = _revision(engine)
    finally:
        engine.dispose()
    if revision is not None and not (revision.isdigit() and int(revision) <= int(HEAD_REVISION)):
        raise StateUnusable(
            f"{path}: written by a newer version of the worker; got revision {revision} of its tables, expected at "
            f"most {HEAD_REVISION}. Start that version again, or {WAY_OUT}"
        )


@contextlib.contextmanager
def readable(path: Path) -> Iterator[None]:
    """Translate errors of a database that is damaged or cannot be opened. Raises StateUnusable with what to do."""
    try:
        yield
    except StateUnusable as error:
        if str(path) in error.message:
            raise
        raise StateUnusable(f"{error.message} (in {path})") from None
    except (sa.exc.DatabaseError, sqlite3.DatabaseError, UnicodeDecodeError) as error:
        if (damage := damage_of(error)) is not None:
            raise damaged(path, damage) from None
        reason = getattr(error, "orig", error)
        raise StateUnusable(
            f"{path}: cannot be opened: {reason}; expected a file that the worker's user may write, on a local disk"
        ) from None


def open_engine(path: Path) -> sa.Engine:
    """Return an SQLAlchemy engine on the file, created and migrated to the newest tables if necessary.

    Raises StateUnusable.
    """
    engine = sa.create_engine(
        f"sqlite:///{path}", connect_args={"check_same_thread": False, "timeout": 30}, hide_parameters=True
    )

    @event.listens_for(engine, "connect")
    def _set_up(connection: Any, _record: object) -> None:
        # WAL: reads during a commit. FULL: durable after a power loss. secure_delete: deleted secrets are zeroed.
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "secure_delete=ON", "foreign_keys=ON"):
            connection.execute(f"PRAGMA {pragma}")

    with engine.connect() as connection:
        if not sa.inspect(connection).get_table_names():
            create_tables(cast(sqlite3.Connection, connection.connection.driver_connection))
    if _revision(engine) != HEAD_REVISION:
        engine.dispose()
        migrate_in_process(f"sqlite:///{path}", str(path))
    return engine


def _revision(engine: sa.Engine) -> str | None:
    with engine.connect() as connection:
        return revision_of(connection)


def revision_of(connection: sa.Connection) -> str | None:
    """Return the revision of the tables, None for a database without them."""
    if not sa.inspect(connection).has_table("alembic_version"):
        return None
    return connection.execute(sa.text("SELECT version_num FROM alembic_version")).scalar()


def migrate_in_process(url: str, name: str) -> None:
    """Run the migrations in a separate process, which frees Alembic's memory at its end. Raises StateUnusable.

    The URL, which may contain a password, goes to its standard input; `name` is for the error.
    """
    program = [*command_of("darkroom.worker.storage.migrations"), "-"]
    made = subprocess.run(program, input=url.encode(), capture_output=True)
    if made.returncode != 0:
        reason = made.stderr.decode(errors="replace")[-500:]
        raise StateUnusable(f"{name}: cannot be brought to this version's tables; {WAY_OUT}: {reason}")


def is_row_of(job: Job) -> sa.ColumnElement[bool]:
    """Return the condition of a job's row. The time is that of its partition, the only one that is looked into then."""
    return sa.and_(JOBS.c.id == job.id, JOBS.c.queued_ms == job.times.queued_at_ms)


def whole_row(job: Job) -> dict[str, object]:
    """Return all columns of a job, for its insertion."""
    return {
        "id": job.id,
        "number": job.number,
        "body_hash": job.body_hash,
        "owner": job.owner,
        "asked_id": job.asked_id,
        "request": dump_json(job.request),
        "prompt": dump_json(job.prompt),
        "queued_ms": job.times.queued_at_ms,
        "metadata": dump_json(job.metadata),
        **changing_row(job),
    }


def changing_row(job: Job) -> dict[str, object]:
    """Return the columns that change after insertion."""
    kept = job.credentials
    return {
        "credentials": None if kept is None else dump_json(_credentials_of(kept)),
        "state": job.state.value,
        "stage": job.stage.value,
        "attempt": job.attempt,
        "seq": job.seq,
        "message": storable(job.message),
        "outputs": dump_json(job.outputs),
        "engine_response": dump_json(job.engine_response),
        "failure": None if job.failure is None else dump_json(job.failure),
        "tuning": dump_json(job.tuning),
        "times": dump_json(job.times),
        "finished_ms": job.times.completed_at_ms if job.state.is_terminal else None,
    }


def request_update(job: Job) -> tuple[sa.Update, dict[str, object]]:
    """Return the write that stores a job's request anew, for `JobStore.save`: it is else stored at insertion alone."""
    is_row = sa.and_(JOBS.c.id == sa.bindparam("moved_id"), JOBS.c.queued_ms == sa.bindparam("moved_queued_ms"))
    named = {"moved_id": job.id, "moved_queued_ms": job.times.queued_at_ms}
    return sa.update(JOBS).where(is_row).values(request=dump_json(job.request)), named


def storable(text: str) -> str:
    """Return a text that every database stores: one from elsewhere may be invalid Unicode or contain NUL."""
    return text.encode(errors="replace").decode().replace("\0", "\ufffd")


def _credentials_of(kept: Credentials) -> dict[str, object]:
    """Return credentials as they are stored; younger fields only where there are any, for earlier versions."""
    younger: dict[str, object] = {}
    younger |= {} if kept.download_headers is None else {"download_headers": kept.download_headers}
    younger |= {"partner_keys": kept.partner_keys} if kept.partner_keys else {}
    return {"s3": None, "webhook_secret": kept.webhook_secret, **kept.stores, **younger}


def _credentials_in(stored: dict[str, Any]) -> Credentials:
    secret, headers = stored.pop("webhook_secret", None), stored.pop("download_headers", None)
    partner_keys = stored.pop("partner_keys", None) or {}
    stores = {name: asked for name, asked in stored.items() if asked is not None}
    return Credentials(stores, secret, headers, partner_keys)


def job_of(row: Any) -> Job:
    """Return the job that a row of JOBS stores. Raises StateUnusable if the row is damaged."""
    try:
        return _job_of(row)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise StateUnusable(
            f"job {row.id} in the job database: damaged: {type(error).__name__}: {error}. {WAY_OUT.capitalize()}"
        ) from None


def _job_of(row: Any) -> Job:
    request = json.loads(row.request)
    request["warnings"] = tuple(request.get("warnings", ()))
    webhook, output = request.pop("webhook"), OutputOptions.of(request.pop("output", None))
    return Job(
        id=row.id,
        number=row.number,
        body_hash=row.body_hash,
        owner=row.owner,
        asked_id=row.asked_id,
        request=JobRequest(**request, webhook=_webhook_target(webhook), output=output),
        prompt=json.loads(row.prompt),
        credentials=None if row.credentials is None else _credentials_in(json.loads(row.credentials)),
        state=JobState(row.state),
        stage=Stage(row.stage),
        attempt=row.attempt,
        seq=row.seq,
        message=row.message,
        outputs=tuple(json.loads(row.outputs)),
        engine_response=json.loads(row.engine_response),
        failure=None if row.failure is None else JobFailure(**json.loads(row.failure)),
        tuning=json.loads(row.tuning),
        times=JobTimes(**json.loads(row.times)),
        metadata=json.loads(row.metadata),
    )


def _webhook_target(stored: dict[str, Any] | None) -> WebhookTarget | None:
    return None if stored is None else WebhookTarget(**{**stored, "events": tuple(stored.get("events", ()))})


def dump_json(value: object) -> str:
    """Return a value as the text that a column stores."""
    return _ENCODER.encode(value)


def _fields_of(value: Any) -> dict[str, object]:
    """Return a dataclass's fields as a dict, without the deep copy of `asdict`."""
    return {field.name: getattr(value, field.name) for field in fields(value)}


_ENCODER = json.JSONEncoder(separators=(",", ":"), default=_fields_of)
