"""GatewayDatabase: the one database of all gateways, PostgreSQL or, for one gateway on one machine, a file of SQLite.

Calls run on threads, each with a connection of the pool. SQLite has one thread and one connection: each transaction is
immediate, and none waits for another.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, TypeVar

import sqlalchemy as sa
from sqlalchemy import event

from darkroom.worker.errors import DatabaseUnreachable, StateUnusable
from darkroom.worker.settings.database import DatabaseConfig
from darkroom.worker.storage.database import JOB_INDEX, JOBS, check_database, open_engine, readable
from darkroom.worker.storage.postgres_database import APPLICATION, LOOK_SECONDS, open_postgres, place_of, prepare_schema
from darkroom.worker.storage.state_directory import StateDirectory

POOL_SIZE: Final = 16
SUFFIX: Final = "_gateway"
FOLDER: Final = "gateway"
FILE: Final = "gateway.db"

LEAVING_SECONDS: Final = 5.0  # for which gateways of the other kind may still be ending
SESSIONS: Final = sa.text(
    "SELECT coalesce(host(client_addr), 'a local socket') AS address, pid FROM pg_stat_activity "
    "WHERE datname = current_database() AND application_name = :name ORDER BY backend_start DESC LIMIT 1"
)
LEFT: Final = ("08", "57P0", "25006")
"""Beginnings of SQLSTATE: a connection that broke, a server that shuts down or starts, and one that is read-only, as
the former one is after a failover."""

CROSSED: Final = ("40P01", "40001")
"""SQLSTATE of a transaction that was undone for others: a deadlock, and a serialization failure."""

Answer = TypeVar("Answer")


class GatewayDatabase:
    """Connections to the database. `folder` has the file where `config` names no server.

    `has_broker`: its jobs go to a broker, not to its own queue. Its sessions have names that tell this: gateways of the
    other kind would send the same jobs a second time, or wait for ones that nobody sends.

    Every method but `close` raises DatabaseUnreachable.
    """

    def __init__(self, config: DatabaseConfig, folder: Path | None = None, *, has_broker: bool = False) -> None:
        self.is_postgres = config.is_set
        self.config = config.model_copy(update={"schema_name": f"{config.schema_name}{SUFFIX}"})
        self._directory = None if self.is_postgres or folder is None else StateDirectory(folder / FOLDER)
        self._has_broker = has_broker
        self._engine = self._open_pool() if self.is_postgres else None
        self._threads = ThreadPoolExecutor(POOL_SIZE if self.is_postgres else 1, thread_name_prefix="gateway-database")
        self._probe_threads = (
            ThreadPoolExecutor(1, thread_name_prefix="gateway-probes") if self.is_postgres else self._threads
        )

    @property
    def name(self) -> str:
        """Place of the database, without credentials."""
        return place_of(self.config) if self.is_postgres else str(self._path)

    @property
    def listed(self) -> sa.Table:
        """The table with the indexes of the job list, and with what is asked of all jobs."""
        return JOB_INDEX if self.is_postgres else JOBS

    def is_job(self, job_id: str) -> sa.ColumnElement[bool]:
        """Return the condition of a job's row, with its partition where there are some: the only one looked into."""
        if not self.is_postgres:
            return JOBS.c.id == job_id
        stored_ms = sa.select(JOB_INDEX.c.queued_ms).where(JOB_INDEX.c.id == job_id).scalar_subquery()
        return sa.and_(JOBS.c.id == job_id, JOBS.c.queued_ms == stored_ms)

    async def open(self) -> None:
        """Create or migrate the tables. Raises StateUnusable, also while gateways of the other kind run."""
        await self._in_thread(self._open)

    async def close(self) -> None:
        """End the threads and the connections."""
        if self._engine is not None:
            await self._in_thread(self._engine.dispose)
        self._threads.shutdown()
        self._probe_threads.shutdown()
        if self._directory is not None and self._directory.is_held:
            self._directory.release()

    async def check(self) -> None:
        """Make a round trip to the database, on a thread of its own: others have requests before them."""
        await self.run(lambda connection: connection.execute(sa.text("SELECT 1")), is_probe=True)

    async def run(
        self,
        function: Callable[[sa.Connection], Answer],
        *,
        is_probe: bool = False,
        is_single: bool = False,
        is_large: Callable[[Answer], bool] = lambda _answer: False,
    ) -> Answer:
        """Call a function in a transaction on a thread, again if its connection was of a server that is gone.

        So is one that was undone because others waited for it and it for them.

        `is_probe`: on a thread of its own. `is_single`: the function makes one statement, which needs no transaction
        around it. `is_large`: whether a connection with this answer is closed, since its buffers stay as large as the
        largest row that they had.
        """
        threads = self._probe_threads if is_probe else self._threads
        call = lambda: self._in_transaction(function, is_large, is_single=is_single)  # noqa: E731
        try:
            return await self._in_thread(call, threads)
        except sa.exc.DBAPIError as error:
            if not (_is_gone(error) or _sqlstate(error) in CROSSED):
                raise _unreachable(error) from None
        try:
            return await self._in_thread(call, threads)
        except sa.exc.DBAPIError as error:
            raise _unreachable(error) from None

    async def with_engine(self, function: Callable[[sa.Engine], Answer]) -> Answer:
        """Call a function that has transactions of its own, on a thread."""

        def call() -> Answer:
            assert self._engine is not None, "the database is open"
            return function(self._engine)

        try:
            return await self._in_thread(call)
        except sa.exc.DBAPIError as error:
            raise _unreachable(error) from None

    async def _in_thread(self, function: Callable[[], Answer], threads: ThreadPoolExecutor | None = None) -> Answer:
        return await asyncio.get_running_loop().run_in_executor(threads or self._threads, function)

    def _in_transaction(
        self, function: Callable[[sa.Connection], Answer], is_large: Callable[[Answer], bool], *, is_single: bool
    ) -> Answer:
        assert self._engine is not None, "the database is open"
        try:
            with self._engine.connect() as connection:
                if is_single and self.is_postgres:
                    connection.execution_options(isolation_level="AUTOCOMMIT")
                    answer = function(connection)
                else:
                    with connection.begin():
                        answer = function(connection)
                if is_large(answer):
                    connection.invalidate()
        except sa.exc.DBAPIError as error:
            if _is_gone(error):  # as are the other connections of the pool
                self._engine.dispose()
            raise
        return answer

    # on the thread

    @property
    def _path(self) -> Path:
        assert self._directory is not None, "a folder where there is no server"
        return self._directory.path / FILE

    def _open_pool(self) -> sa.Engine:
        name = self._session_name(has_broker=self._has_broker)
        return open_postgres(self.config, num_connections=POOL_SIZE, name=name)

    def _session_name(self, *, has_broker: bool) -> str:
        """Return the name of the sessions of gateways with or without a broker that share this schema."""
        schema = sha256(self.config.schema_name.encode()).hexdigest()[:16]
        return f"{APPLICATION} gateway {'with broker' if has_broker else 'with queue'} {schema}"

    def _check_others(self, engine: sa.Engine) -> None:
        """Raise StateUnusable if gateways of the other kind still run after some seconds.

        Of two that start at the same time each has a session by now, so at least one of them finds the other.
        """
        until = time.monotonic() + LEAVING_SECONDS
        other = {"name": self._session_name(has_broker=not self._has_broker)}
        while True:
            with engine.connect() as connection:
                session = connection.execute(SESSIONS, other).first()
            if session is None:
                return
            if time.monotonic() >= until:
                kind = "without" if self._has_broker else "with"
                raise StateUnusable(
                    f"BROKER_URL: gateways {kind} one use {self.name}, schema {self.config.schema_name}, one of them "
                    f"from {session.address} (session {session.pid}); stop them all before the first one with another "
                    "setting starts"
                )
            time.sleep(LOOK_SECONDS)

    def _open(self) -> None:
        if self.is_postgres:
            assert self._engine is not None
            try:
                prepare_schema(self._engine, self.config)
                self._check_others(self._engine)
            except BaseException:
                self._engine.dispose()
                raise
            return
        assert self._directory is not None, "a folder where there is no server"
        self._directory.take()
        try:
            check_database(self._path)
            with readable(self._path):
                self._engine = open_engine(self._path)
                _begin_immediately(self._engine)
        except BaseException:
            self._directory.release()
            raise


def _begin_immediately(engine: sa.Engine) -> None:
    """Let each transaction begin as one that writes: one that reads first could not write once another has written.

    `octet_length` is a function of SQLite from 3.43 on.
    """
    engine.dispose()

    @event.listens_for(engine, "connect")
    def _set_up(connection: Any, _record: object) -> None:
        connection.isolation_level = None
        connection.create_function("octet_length", 1, lambda text: len(text.encode()), deterministic=True)

    @event.listens_for(engine, "begin")
    def _begin(connection: sa.Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")


def _unreachable(error: sa.exc.DBAPIError) -> Exception:
    """Return an error that says that the database does not answer; any other one as it is."""
    if not (isinstance(error, sa.exc.OperationalError) or _is_gone(error)):
        return error
    reason = str(error.orig).strip().partition("\n")[0]
    return DatabaseUnreachable(f"The job database cannot be reached: {reason}", retry_after_seconds=5)


def _is_gone(error: sa.exc.DBAPIError) -> bool:
    """Return True if the server of a connection has left, is leaving, or takes nothing any more."""
    return error.connection_invalidated or _sqlstate(error).startswith(LEFT)


def _sqlstate(error: sa.exc.DBAPIError) -> str:
    """Return the code of an error of PostgreSQL, empty for none."""
    return str(getattr(error.orig, "sqlstate", None) or "")
