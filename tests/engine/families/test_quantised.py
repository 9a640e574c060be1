"""Quantised files: ComfyUI's recorded latents, drawn again by the engine in this process."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.engine import Engine
from engine.memory import machine_memory
from engine.settings import EngineSettings, MemorySettings
from tests.parity.compare import CASES, INPUTS, find_cases
from tests.parity.in_process import assert_like_the_reference

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    base = tmp_path_factory.mktemp("quantised")
    shutil.copytree(INPUTS, base / "input")
    with Engine(EngineSettings(base_directory=base, cpu=True)) as running:
        yield running
    shutil.rmtree(base)


@pytest.mark.slow
@pytest.mark.parametrize("case", [*find_cases(family="quantised")], ids=lambda case: case.stem)
def test_draws_what_comfyui_draws(engine: Engine, case: Path) -> None:
    assert_like_the_reference(engine, case)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gguf_sd3_q4k_lora", "sd3_scaled_lora"])
def test_draws_the_same_on_a_card_that_has_no_room_for_the_network(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks are unpacked and patched on the way there; the transformer alone takes 9 to 14 MB."""
    monkeypatch.setattr(machine_memory, "total_bytes", lambda: 64 << 30)
    monkeypatch.setattr(machine_memory, "available_bytes", lambda: 48 << 30)
    shutil.copytree(INPUTS, tmp_path / "input")
    card = MemorySettings("normalvram", simulate_vram_gb=0.04)
    with Engine(EngineSettings(base_directory=tmp_path, cpu=False, memory=card)) as engine:
        assert_like_the_reference(engine, CASES / "quantised" / f"{name}.json")
        assert engine.memory_report().num_streamed > 0
