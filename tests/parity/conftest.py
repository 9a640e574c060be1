"""One base directory and one engine for all recorded cases: a model that a case needs is made once."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from darkroom.engine.engine import Engine
from darkroom.engine.settings import EngineSettings
from tests.parity.recorded import INPUTS


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("parity")
    shutil.copytree(INPUTS, folder / "input")
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def engine(base: Path) -> Iterator[Engine]:
    with Engine(EngineSettings(base_directory=base, cpu=True)) as running:
        yield running
