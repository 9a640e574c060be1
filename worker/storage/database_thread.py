"""DatabaseThread: the connection to the job database on a thread of its own, and why it cannot be used at present."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa
import structlog

from darkroom.worker.errors import DatabaseUnreachable, StateTakenOver, StateUnusable
from darkroom.worker.storage.database_damage import WAY_OUT, damage_of, damaged
from darkroom.worker.storage.job_database import JobDatabase

Answer = TypeVar("Answer")

log = structlog.get_logger("jobs.store")


class DatabaseThread:
    """Connection to the job database, used on one thread only.

    `reason` says why it cannot be used at present; empty if it can. `on_taken_over` is called when another worker has
    taken the database, `on_unreachable` when a server could not be read.
    """

    def __init__(
        self,
        database: JobDatabase,
        on_taken_over: Callable[[], None] = lambda: None,
        on_unreachable: Callable[[], None] = lambda: None,
    ) -> None:
        self.reason = ""
        self._database = database
        self._on_taken_over = on_taken_over
        self._on_unreachable = on_unreachable
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="job-database")
        self._is_open = False
        self._refused: set[str] = set()  # insertions reported as failed; used on the thread

    @property
    def is_remote(self) -> bool:
        """True if the jobs are at a database server."""
        return self._database.is_remote

    @property
    def problem(self) -> str:
        """The reason why the database cannot be used, as a sentence; empty if there is none."""
        if not self.reason:
            return ""
        return f"The job database cannot be {'reached' if self.is_remote else 'written'}: {self.reason}"

    @property
    def listed(self) -> sa.Table:
        """The table with the indexes of the job list."""
        return self._database.listed

    def report(self) -> dict[str, object] | None:
        """Return the state of the connection to a database server, for `/health`; None for a file."""
        if not self.is_remote:
            return None
        state = {"state": "unreachable", "reason": self.reason} if self.reason else {"state": "connected"}
        return {"database": self._database.name, **state}

    def check(self) -> None:
        """Check what can be checked before the server listens. Raises StateUnusable."""
        self._database.check()

    async def call(self, function: Callable[[], Answer]) -> Answer:
        """Call a function on the thread and return its result."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, function)

    async def read(self, function: Callable[[], Answer]) -> Answer:
        """Call a function that reads, on the thread. Raises DatabaseUnreachable."""
        try:
            return await self.call(function)
        except (sa.exc.DatabaseError, UnicodeDecodeError, StateUnusable) as error:
            if not self.is_remote and not isinstance(error, StateUnusable):
                raise self.damage(error) or error from None
            if isinstance(error, UnicodeDecodeError) or not (self.is_remote and self._is_open):
                raise
            if not isinstance(error, sa.exc.OperationalError | StateUnusable):
                raise
            reason = self.note_failure(error)
            self._on_unreachable()
            raise DatabaseUnreachable(f"The job database cannot be read: {reason}", retry_after_seconds=5) from None

    async def rows(self, query: sa.Select[Any]) -> list[sa.Row[Any]]:
        """Return the rows that are on disk now. Raises DatabaseUnreachable."""
        return await self.read(lambda: list(self.connected().execute(query)))

    def note_failure(self, error: sa.exc.OperationalError | StateUnusable) -> str:
        """Return the reason of a failure, and record that the database cannot be used."""
        reason = error.message if isinstance(error, StateUnusable) else str(error.orig).strip().partition("\n")[0]
        if self.is_remote and not self.reason:
            log.error("database unreachable", reason=reason)
        self.reason = reason
        if isinstance(error, StateTakenOver):
            self._on_taken_over()
        return reason

    def note_damage(self, error: sa.exc.DatabaseError) -> StateUnusable | None:
        """Return the error of a damaged file, and record that it cannot be used; None where it is not damaged."""
        found = self.damage(error)
        if found is not None:
            self.reason = damage_of(error) or ""
        return found

    def note_success(self) -> None:
        """Record that the database has answered."""
        if self.reason:
            log.info("database connected" if self.is_remote else "database written again")
            self.reason = ""

    def damage(self, error: Exception) -> StateUnusable | None:
        """Return the error of a damaged file, logged once, None where the file is not damaged."""
        what = None if self.is_remote else damage_of(error)
        if what is None:
            return None
        if what != self.reason:
            log.critical("job database damaged", file=self._database.name, reason=what, remedy=WAY_OUT)
        return damaged(Path(self._database.name), what)

    async def close(self) -> None:
        """Close the connection and end the thread."""
        await self.call(self.disconnect)
        self._thread.shutdown()

    # on the thread

    def load(self, read: Callable[[sa.Connection], None]) -> None:
        """Connect, and read what is stored. Raises StateUnusable."""
        with self._database.readable():
            read(self._database.connection(self._refused))
        self._is_open = True
        self.empty_log()  # the log of a killed worker may contain erased secrets

    def connected(self) -> sa.Connection:
        """Return the connection, in no transaction. Raises StateUnusable before `load`."""
        if not self._is_open:
            raise StateUnusable("the job database is not open")
        connection = self._database.connection(self._refused)
        if connection.in_transaction():
            connection.rollback()  # an earlier read left a transaction open, which would show old data
        return connection

    def refuse(self, job_ids: Iterable[str]) -> None:
        """Record insertions reported as failed that a server may have all the same: they are removed from it."""
        if self.is_remote:
            self._refused.update(job_ids)

    def is_job(self, job_id: str) -> sa.ColumnElement[bool]:
        """Return the condition of a job's row."""
        return self._database.is_job(job_id)

    def keep_days(self, before_ms: int) -> tuple[list[str], int]:
        """Remove days whose jobs all ended before a time, where jobs are stored by day.

        Returns the ids of the jobs that were removed, and the time before which the caller removes the rest, by row.
        """
        self.connected()
        return self._database.keep_days(int(time.time() * 1000), before_ms)

    def empty_log(self) -> None:
        """Remove erased secrets from the database's write-ahead log."""
        if not self.is_remote:
            self.connected()
        self._database.forget_erased()

    def disconnect(self) -> None:
        """Close the connection."""
        self._is_open = False
        self._database.close()
