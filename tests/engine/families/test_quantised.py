"""Quantised files: ComfyUI's recorded latents, drawn again by the engine in this process."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.engine import Engine
from engine.settings import EngineSettings
from tests.parity.compare import CASES, INPUTS
from tests.parity.in_process import assert_like_the_reference

pytestmark = pytest.mark.timeout(600)
FAST = ("flux_scaled_lora", "sd3_scaled_lora")


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    base = tmp_path_factory.mktemp("quantised")
    shutil.copytree(INPUTS, base / "input")
    with Engine(EngineSettings(base_directory=base, cpu=True)) as running:
        yield running
    shutil.rmtree(base)


@pytest.mark.slow
@pytest.mark.parametrize("case", sorted((CASES / "quantised").glob("*.json")), ids=lambda case: case.stem)
def test_draws_what_comfyui_draws(engine: Engine, case: Path) -> None:
    assert_like_the_reference(engine, case)
