"""JobDatabase: the connection to the job database, an SQLite file or a schema of PostgreSQL.

Blocking; `database_thread.py` calls it on its thread.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

import sqlalchemy as sa

from darkroom.worker.storage.database import JOBS, check_database, open_engine, readable


class JobDatabase(Protocol):
    """One database of one worker."""

    @property
    def name(self) -> str:
        """Its place, without credentials."""
        ...

    @property
    def is_remote(self) -> bool:
        """True for a server, which can be unreachable for a while."""
        ...

    def check(self) -> None:
        """Check, before the server listens, what can be checked at once. Raises StateUnusable."""
        ...

    def connection(self, refused: set[str]) -> sa.Connection:
        """Return the open connection, a new one at first and after a loss.

        After a loss the `refused` jobs, whose insertion was reported as failed, are removed from the database if they
        are there, and from the set. Raises StateUnusable, SQLAlchemy's DBAPIError.
        """
        ...

    @property
    def listed(self) -> sa.Table:
        """The table with the indexes of the job list: JOBS or JOB_INDEX."""
        ...

    def is_job(self, job_id: str) -> sa.ColumnElement[bool]:
        """Return the condition of a job's row, after `connection`. Reads, so as to name the partition, too."""
        ...

    def keep_days(self, now_ms: int, before_ms: int) -> tuple[list[str], int]:
        """Remove days whose jobs all ended before a time, after `connection`, where jobs are stored by day.

        Returns the ids of the jobs that were removed, and the time before which the caller removes the rest, by row.
        """
        ...

    def readable(self) -> AbstractContextManager[None]:
        """Translate errors of the first connection and of damaged contents. Raises StateUnusable."""
        ...

    def forget_erased(self) -> None:
        """Remove erased contents from logs of the database, where it keeps them."""
        ...

    def close(self) -> None: ...


class SqliteDatabase:
    """The job database as an SQLite file in the state directory."""

    is_remote = False
    listed = JOBS

    def __init__(self, path: Path) -> None:
        self._path = path
        self.name = str(path)
        self._engine: sa.Engine | None = None
        self._connection: sa.Connection | None = None

    def check(self) -> None:
        check_database(self._path)

    def connection(self, refused: set[str]) -> sa.Connection:
        if self._connection is None:
            self._engine = open_engine(self._path)
            self._connection = self._engine.connect()
        return self._connection

    def is_job(self, job_id: str) -> sa.ColumnElement[bool]:
        return JOBS.c.id == job_id

    def keep_days(self, now_ms: int, before_ms: int) -> tuple[list[str], int]:
        return [], before_ms

    def readable(self) -> AbstractContextManager[None]:
        return readable(self._path)

    def forget_erased(self) -> None:
        """Checkpoint and truncate the write-ahead log, which contains erased secrets until then."""
        if self._connection is not None:
            self._connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
            self._connection.rollback()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        if self._engine is not None:
            self._engine.dispose()
