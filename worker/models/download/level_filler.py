"""LevelFiller: stores fetched model files in the bucket that workers fill for each other, beside the jobs."""

from __future__ import annotations

import asyncio
from pathlib import Path

import structlog

from darkroom.worker.errors import WorkerError
from darkroom.worker.models.download.open_source import SourceOpener
from darkroom.worker.models.entry import ModelEntry
from darkroom.worker.models.errors import SourceFailed
from darkroom.worker.models.sources import Source

log = structlog.get_logger("models")


class LevelFiller:
    """Owner of the uploads to the bucket level, if there is one. Use `close()` at the end."""

    def __init__(self, opener: SourceOpener) -> None:
        self._opener = opener
        self._uploads: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """Give up what has not been stored."""
        for task in self._uploads:
            task.cancel()
        await asyncio.gather(*self._uploads, return_exceptions=True)

    async def finish(self) -> None:
        """Wait until everything is stored, or has failed."""
        while self._uploads:
            await asyncio.gather(*self._uploads, return_exceptions=True)

    def sources_of(self, entry: ModelEntry) -> list[Source]:
        """Return the sources of an operator's entry in order, the level before the others where the hash is known."""
        level = self._opener.level
        if level is None or entry.sha256 is None:
            return list(entry.sources)
        return [level.source_of(entry.sha256), *entry.sources]

    def is_level(self, source: Source) -> bool:
        level = self._opener.level
        return level is not None and level.has(str(source))

    def fill_soon(self, path: Path, sha256: str) -> None:
        """Store a file while its job goes on. A failure is logged: the file has other sources."""
        level = self._opener.level
        if level is None:
            return
        source = level.source_of(sha256)

        async def fill() -> None:
            try:
                if await self._opener.store(path, source):
                    log.info("model stored", model=path.name, source=str(source))
            except (SourceFailed, WorkerError, OSError) as error:
                log.warning("model not stored", model=path.name, reason=str(error))

        task = asyncio.create_task(fill(), name=f"fill-{path.name}")
        self._uploads.add(task)
        task.add_done_callback(self._uploads.discard)
