"""LogTruncation: truncation of the database's write-ahead log after commits that erased secrets."""

from __future__ import annotations

import asyncio

import sqlalchemy as sa
import structlog

from darkroom.worker.storage.database_thread import DatabaseThread
from darkroom.worker.storage.group_commit import RETRY_SECONDS

TRUNCATE_SECONDS = 0.5

log = structlog.get_logger("jobs.store")


class LogTruncation:
    """Flag for erased secrets that are still in the write-ahead log, and the timer of the truncation that removes them.

    Truncations are debounced by `TRUNCATE_SECONDS`.
    """

    def __init__(self, database: DatabaseThread) -> None:
        self._database = database
        self._log_holds_secrets = False
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_closing = False

    def mark(self) -> None:
        """Record that the write-ahead log holds erased secrets, or will after the next commit."""
        self._log_holds_secrets = True

    def truncate_soon(self) -> None:
        """Schedule a truncation, unless nothing in the log was erased or one is already due."""
        if self._log_holds_secrets and self._timer is None and not self._is_closing:
            self._timer = asyncio.get_running_loop().call_later(TRUNCATE_SECONDS, self._begin)

    async def truncate(self) -> None:
        """Truncate the log now. After a failure it is tried again with the next commit."""
        try:
            await self._database.call(self._database.empty_log)
        except sa.exc.OperationalError as error:
            log.error("write-ahead log not truncated", reason=str(error.orig), retry_in_seconds=RETRY_SECONDS)
            self.mark()

    async def close(self) -> None:
        """Wait for a truncation under way; none is scheduled any more, since the log ends with the connection."""
        self._is_closing = True
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            await self._task

    def _begin(self) -> None:
        self._timer = None
        self._log_holds_secrets = False
        self._task = asyncio.create_task(self.truncate(), name="erase-from-log")
