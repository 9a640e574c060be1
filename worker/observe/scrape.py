"""Scrape: reads the figures that have to be asked for before the metrics are shown."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

import structlog

FRESH_SECONDS = 0.5
LIMIT_SECONDS = 2.0

log = structlog.get_logger("metrics")


class Scrape:
    """Readers of figures. A reader that fails or is slow leaves its last figures in place.

    Concurrent scrapes share one reading, and a reader that hangs (a disk on the network, say) is not called again.
    """

    def __init__(self, readers: Sequence[Callable[[], Awaitable[None]]], limit_seconds: float = LIMIT_SECONDS) -> None:
        self._readers = readers
        self._limit_seconds = limit_seconds
        self._reading = asyncio.Lock()
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._read_at: float | None = None

    async def read(self) -> None:
        """Read all figures that are older than half a second."""
        async with self._reading:
            if self._read_at is not None and time.monotonic() - self._read_at < FRESH_SECONDS:
                return
            for index, reader in enumerate(self._readers):
                if index not in self._tasks:
                    self._tasks[index] = asyncio.create_task(_read(reader))
            done, _ = await asyncio.wait(self._tasks.values(), timeout=self._limit_seconds)
            self._tasks = {index: task for index, task in self._tasks.items() if task not in done}
            self._read_at = time.monotonic()


async def _read(reader: Callable[[], Awaitable[None]]) -> None:
    try:
        await reader()
    except Exception as error:  # noqa: BLE001 - one source of figures: the others are shown without it
        log.warning("figures unreadable", reader=getattr(reader, "__qualname__", ""), error=type(error).__name__)
