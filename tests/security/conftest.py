"""What attacks need: a lying server, and the front with a fake engine beside it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.fakes import FakeEngine
from tests.security.lying_server import LyingServer, running_lying_server
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
