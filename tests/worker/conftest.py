"""Fixtures of most tests of the front: a fake engine beside it, and the front itself."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import structlog

from darkroom.worker.engines import watch
from darkroom.worker.engines.client import prompt_runner
from darkroom.worker.qualification import readiness
from darkroom.worker.storage.postgres_database import PostgresDatabase
from tests.fakes import FakeEngine
from tests.worker.databases import NewDatabase, file_of_directory
from tests.worker.postgres_server import PostgresServer, running_postgres
from tests.worker.receiver import Receiver, running_receiver
from tests.worker.running_front import RunningFront, running_front


@pytest.fixture(autouse=True)
def _plain_traces() -> None:
    """In tests that make things fail: a trace with every local variable in colours takes seconds.

    For each test anew, since commands under test set up the log of their process.
    """
    structlog.reset_defaults()
    structlog.configure(
        processors=[
            structlog.stdlib.add_log_level,
            structlog.processors.format_exc_info,
            structlog.dev.ConsoleRenderer(),
        ]
    )


@pytest.fixture(scope="session", autouse=True)
def _quick_looks() -> Iterator[None]:
    """The front looks at its engines every few seconds; tests that take one away need not wait so long."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(watch, "LOOK_SECONDS", 0.2)
        patch.setattr(watch, "LOOK_SECONDS_FOREIGN", 0.2)
        patch.setattr(prompt_runner, "LOOK_SECONDS", 1.0)
        patch.setattr(readiness, "LATE_SECONDS", 0.5)
        yield


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL server for the whole session; each test makes a database of its own."""
    with running_postgres() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def new_database(request: pytest.FixtureRequest) -> NewDatabase:
    """Both kinds of job database, one after the other."""
    if request.param == "sqlite":
        return file_of_directory
    server: PostgresServer = request.getfixturevalue("postgres")
    config = server.config(server.new_database())
    return lambda: PostgresDatabase(config)


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[FakeEngine]:
    (tmp_path / "engine").mkdir()
    async with FakeEngine(tmp_path / "engine") as engine:
        yield engine


@pytest.fixture
async def front(tmp_path: Path, engine: FakeEngine) -> AsyncIterator[RunningFront]:
    async with running_front(tmp_path, engine) as front:
        yield front


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with running_receiver() as receiver:
        yield receiver
