"""Job stores for tests: over a database that has today's tables already, since migrating one takes a second."""

from __future__ import annotations

import contextlib
import functools
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from darkroom.worker.storage.job_database import JobDatabase
from darkroom.worker.storage.migrations.__main__ import migrate
from darkroom.worker.storage.store import JobStore


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


NewDatabase = Callable[[], JobDatabase | None]
"""Makes the connection of a store, each time to the same database; None stands for the file of its directory."""


def file_of_directory() -> JobDatabase | None:
    return None


@contextlib.asynccontextmanager
async def opened(directory: Path, database: NewDatabase = file_of_directory) -> AsyncIterator[JobStore]:
    """The store of a directory, as the front that begins there has it; closed at the end."""
    give_database(directory)
    store = JobStore(directory, database=database())
    await store.open()
    try:
        yield store
    finally:
        await store.close()
