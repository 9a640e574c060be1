"""Job stores for tests: over a database that has today's tables already, since migrating one takes a second."""

from __future__ import annotations

import contextlib
import functools
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from worker.jobs.migrations.__main__ import migrate
from worker.jobs.store import JobStore


def give_database(state: Path) -> None:
    """An empty database with today's tables, unless there is one."""
    if not (state / "darkroom.db").exists():
        state.mkdir(parents=True, exist_ok=True)
        (state / "darkroom.db").write_bytes(_migrated_database())


@functools.cache
def _migrated_database() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "darkroom.db"
        migrate(path)
        return path.read_bytes()


@contextlib.asynccontextmanager
async def opened(directory: Path) -> AsyncIterator[JobStore]:
    """The store of a directory, as the front that begins there has it; closed at the end."""
    give_database(directory)
    store = JobStore(directory)
    await store.open()
    try:
        yield store
    finally:
        await store.close()
