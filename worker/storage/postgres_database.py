"""PostgresDatabase: the job database as a schema of a PostgreSQL server, held by one worker.

The holder has a session's advisory lock of the schema and has stored its name. A connection that was lost is opened
again; if another worker has held the schema meanwhile, this one may not go on.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import time
import uuid
from collections.abc import Iterator
from hashlib import sha256

import sqlalchemy as sa

from darkroom.host.distribution import install_command
from darkroom.worker.errors import SettingsInvalid, StateTakenOver, StateUnusable
from darkroom.worker.settings.database import DatabaseConfig
from darkroom.worker.storage.database import (
    FACT_UPSERT,
    FACTS,
    HEAD_REVISION,
    JOB_INDEX,
    JOBS,
    migrate_in_process,
    revision_of,
)
from darkroom.worker.storage.job_partitions import keep_days, make_days, rows_before_ms

CONNECT_SECONDS = 5
STATEMENT_SECONDS = 60
LOST_MILLISECONDS = 15_000
SERVER_KEEPALIVES = "-c tcp_keepalives_idle=30 -c tcp_keepalives_interval=10 -c tcp_keepalives_count=3"
"""With these the server ends a session within a minute whose host is gone: it keeps its locks until then."""

OPEN_SECONDS = 30.0
LOOK_SECONDS = 0.5
HOLDER = "holder"
APPLICATION = "darkroom"


class PostgresDatabase:
    """A `JobDatabase` on PostgreSQL. `open_seconds` bounds the wait for the server and the schema at the start."""

    is_remote = True
    listed = JOB_INDEX

    def __init__(self, config: DatabaseConfig, open_seconds: float = OPEN_SECONDS) -> None:
        self._config = config
        self._schema = config.schema_name
        self.name = place_of(config)
        self._engine = open_postgres(config)
        self._open_seconds = open_seconds
        self._holder = uuid.uuid4().hex
        self._is_open = False
        self._connection: sa.Connection | None = None

    def check(self) -> None:
        """Nothing: the server may come later than this process."""

    def connection(self, refused: set[str]) -> sa.Connection:
        if self._connection is not None and not self._connection.invalidated:
            return self._connection
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self._connection = self._reopened(refused) if self._is_open else self._opened()
        self._is_open = True
        return self._connection

    def is_job(self, job_id: str) -> sa.ColumnElement[bool]:
        assert self._connection is not None
        return is_job(self._connection, job_id)

    def keep_days(self, now_ms: int, before_ms: int) -> tuple[list[str], int]:
        assert self._connection is not None
        self._connection.rollback()
        return keep_days(self._connection, now_ms, before_ms), rows_before_ms(now_ms, before_ms)

    @contextlib.contextmanager
    def readable(self) -> Iterator[None]:
        try:
            yield
        except sa.exc.DBAPIError as error:
            raise StateUnusable(f"DATABASE_URL: {self.name} cannot be used: {_reason(error)}") from None

    def forget_erased(self) -> None:
        """Nothing: PostgreSQL overwrites deleted rows when it vacuums."""

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._engine.dispose()

    def _opened(self) -> sa.Connection:
        """Return the first connection, once the server is reachable and no other worker holds the schema."""
        until = time.monotonic() + self._open_seconds
        while True:
            try:
                connection = self._engine.connect()
                if self._is_locked(connection):
                    break
                connection.close()
                problem = f"DATABASE_SCHEMA: {self._schema} of {self.name} is in use by another worker"
            except sa.exc.OperationalError as error:
                problem = f"DATABASE_URL: {self.name} cannot be reached: {_reason(error)}"
            if time.monotonic() >= until:
                raise StateUnusable(problem)
            time.sleep(LOOK_SECONDS)
        prepare_tables(connection, self._config)
        connection.execute(FACT_UPSERT, {"name": HOLDER, "value": json.dumps(self._holder)})
        connection.commit()
        return connection

    def _reopened(self, refused: set[str]) -> sa.Connection:
        connection = self._engine.connect()
        try:
            if not self._is_locked(connection):
                raise StateUnusable("the lock of the schema is held by another session")
            holder = connection.execute(sa.select(FACTS.c.value).where(FACTS.c.name == HOLDER)).scalar()
            if holder != json.dumps(self._holder):
                raise StateTakenOver(f"{self.name}, schema {self._schema}: taken over by another worker")
            connection.execute(sa.delete(JOBS).where(JOBS.c.id.in_(list(refused))))
            connection.commit()
            refused.clear()
        except BaseException:
            connection.close()
            raise
        return connection

    def _is_locked(self, connection: sa.Connection) -> bool:
        is_locked = connection.execute(sa.select(sa.func.pg_try_advisory_lock(_lock_key(self._config)))).scalar()
        connection.commit()
        return bool(is_locked)


def place_of(config: DatabaseConfig) -> str:
    """Return a server's address and its database, without credentials."""
    url = _url(config)
    return f"postgresql://{url.host or 'localhost'}:{url.port or 5432}/{url.database or ''}"


def is_job(connection: sa.Connection, job_id: str) -> sa.ColumnElement[bool]:
    """Return the condition of a job's row, with its partition: the server would look into every one of them."""
    query = sa.select(JOB_INDEX.c.queued_ms).where(JOB_INDEX.c.id == job_id)
    queued_ms = connection.execute(query).scalar()
    return sa.false() if queued_ms is None else sa.and_(JOBS.c.id == job_id, JOBS.c.queued_ms == queued_ms)


def prepare_tables(connection: sa.Connection, config: DatabaseConfig) -> None:
    """Create a schema, bring its tables to this version, and make today's partition. Raises StateUnusable."""
    migrate_schema(connection, config)
    make_days(connection, int(time.time() * 1000))


def migrate_schema(connection: sa.Connection, config: DatabaseConfig) -> None:
    """Create a schema and bring its tables to this version. Raises StateUnusable."""
    connection.execute(sa.schema.CreateSchema(config.schema_name, if_not_exists=True))
    connection.commit()
    revision = revision_of(connection)
    connection.rollback()
    if revision == HEAD_REVISION:
        return
    name = f"{place_of(config)}, schema {config.schema_name}"
    if revision is not None and not (revision.isdigit() and int(revision) < int(HEAD_REVISION)):
        raise StateUnusable(
            f"{name}: written by a newer version of the worker; got revision {revision} of its tables, expected at "
            f"most {HEAD_REVISION}"
        )
    url = _url(config)
    url = url.update_query_dict({"options": _options(url, config.schema_name)})
    migrate_in_process(url.render_as_string(hide_password=False), name)


def prepare_schema(engine: sa.Engine, config: DatabaseConfig, open_seconds: float = OPEN_SECONDS) -> None:
    """Create and migrate a schema that several processes share, one at a time. Waits for the server.

    Raises StateUnusable.
    """
    until = time.monotonic() + open_seconds
    while True:
        try:
            with engine.connect() as connection, _locked(connection, config):
                prepare_tables(connection, config)
            return
        except sa.exc.OperationalError as error:
            if time.monotonic() >= until:
                problem = f"DATABASE_URL: {place_of(config)} cannot be reached: {_reason(error)}"
                raise StateUnusable(problem) from None
        time.sleep(LOOK_SECONDS)


@contextlib.contextmanager
def _locked(connection: sa.Connection, config: DatabaseConfig) -> Iterator[None]:
    """Hold the lock of a schema; the server frees it with a session that is lost."""
    connection.execute(sa.select(sa.func.pg_advisory_lock(_lock_key(config))))
    connection.commit()
    try:
        yield
    finally:
        if not connection.invalidated:  # else this would hide the reason
            connection.rollback()
            connection.execute(sa.select(sa.func.pg_advisory_unlock(_lock_key(config))))
            connection.commit()


def open_postgres(config: DatabaseConfig, *, num_connections: int = 1, name: str = APPLICATION) -> sa.Engine:
    """Return an SQLAlchemy engine whose connections see the schema, and notice a server that is gone.

    `name` is that of its sessions at the server. Raises SettingsInvalid without the library.
    """
    if importlib.util.find_spec("psycopg") is None:
        raise SettingsInvalid(f"DATABASE_URL: the package psycopg is not installed; {install_command('postgres')}")
    arguments = connect_arguments(config) | {"application_name": name}
    return sa.create_engine(
        _url(config), connect_args=arguments, hide_parameters=True, pool_size=num_connections
    )  # fmt: skip


def connect_arguments(config: DatabaseConfig) -> dict[str, str | int]:
    """Return the arguments of a connection that sees the schema. Either end notices one that is gone."""
    url = _url(config)
    return {
        "connect_timeout": CONNECT_SECONDS,
        "tcp_user_timeout": LOST_MILLISECONDS,
        "keepalives_idle": 5,
        "keepalives_interval": 2,
        "keepalives_count": 3,
        "application_name": APPLICATION,
        "options": (
            f"{SERVER_KEEPALIVES} {_options(url, config.schema_name)} -c statement_timeout={STATEMENT_SECONDS * 1000}"
        ),
    }


def _url(config: DatabaseConfig) -> sa.URL:
    return sa.make_url(config.url.get_secret_value()).set(drivername="postgresql+psycopg")


def _lock_key(config: DatabaseConfig) -> sa.ColumnElement[int]:
    key = int.from_bytes(sha256(f"darkroom {config.schema_name}".encode()).digest()[:8], signed=True)
    return sa.literal(key, sa.BigInteger)


def _options(url: sa.URL, schema: str) -> str:
    given = url.query.get("options", "")
    return f"{given if isinstance(given, str) else ' '.join(given)} -c search_path={schema}".strip()


def _reason(error: sa.exc.DBAPIError) -> str:
    return str(error.orig).strip().splitlines()[0]
