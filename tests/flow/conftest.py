"""One worker for all flow tests: what one of them sends must not disturb the next."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.flow.families import MEASURED, furnish_families
from tests.flow.receiver import Receiver, running_receiver
from tests.flow.running_worker import RunningWorker, running_worker
from tests.flow.studio import furnish


@pytest.fixture(scope="session")
def worker(tmp_path_factory: pytest.TempPathFactory, small_checkpoint: Path) -> Iterator[RunningWorker]:
    with running_worker(tmp_path_factory.mktemp("base"), small_checkpoint) as running:
        yield running


@pytest.fixture(scope="session")
def studio(tmp_path_factory: pytest.TempPathFactory, small_checkpoint: Path) -> Iterator[RunningWorker]:
    """A worker that has more than a checkpoint."""
    base = tmp_path_factory.mktemp("studio")
    furnish(base)
    with running_worker(base, small_checkpoint) as running:
        yield running


@pytest.fixture(scope="session")
def families(tmp_path_factory: pytest.TempPathFactory, small_checkpoint: Path) -> Iterator[RunningWorker]:
    """A worker with checkpoints of many families, measured with another family than the default one."""
    base = tmp_path_factory.mktemp("families")
    furnish_families(base)
    settings = {"BENCHMARK": "auto", "BENCHMARK_FAMILY": MEASURED.name, "BENCHMARK_TEST_STEPS": "2", "TUNING": "off"}
    with running_worker(base, small_checkpoint, METADATA="prompt", **settings) as running:
        yield running


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with running_receiver() as running:
        yield running
