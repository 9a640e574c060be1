"""Fixtures of attacks: a lying server, and the front with a fake engine beside it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.fakes import FakeEngine
from tests.flow.running_worker import RunningWorker, running_worker
from tests.security.lying_server import LyingServer, running_lying_server
from tests.security.naming_pack import PACK
from tests.worker.receiver import Receiver, running_receiver
from tests.worker.running_front import RunningFront, running_front


@pytest.fixture
def liar() -> Iterator[LyingServer]:
    with running_lying_server() as server:
        yield server


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[FakeEngine]:
    (tmp_path / "engine").mkdir()
    async with FakeEngine(tmp_path / "engine") as engine:
        yield engine


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with running_receiver() as receiver:
        yield receiver


@pytest.fixture
async def front(tmp_path: Path, engine: FakeEngine) -> AsyncIterator[RunningFront]:
    async with running_front(tmp_path, engine) as front:
        yield front


@pytest.fixture(scope="session")
def files_worker(tmp_path_factory: pytest.TempPathFactory, small_checkpoint: Path) -> Iterator[RunningWorker]:
    base = tmp_path_factory.mktemp("files")
    (base / "custom_nodes" / "names").mkdir(parents=True)
    (base / "custom_nodes" / "names" / "__init__.py").write_text(PACK)
    with running_worker(base, small_checkpoint) as running:
        yield running
