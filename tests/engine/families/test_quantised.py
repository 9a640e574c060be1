"""Quantised files: ComfyUI's recorded latents, drawn again by the engine in this process."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from benchmark.family_workflows import image_of_checkpoint
from darkroom.engine.engine import Engine
from darkroom.engine.families import registry
from darkroom.engine.families.base import ModelFamily
from darkroom.engine.memory import machine_memory
from darkroom.engine.models.random_weights import write_random_checkpoint
from darkroom.engine.settings import EngineSettings, MemorySettings
from tests.engine.simulated_card import latent_of, run
from tests.parity.in_process import assert_like_the_reference
from tests.parity.quantised_models import scaled_float8
from tests.parity.recorded import INPUTS, Case, find_cases

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    base = tmp_path_factory.mktemp("quantised")
    shutil.copytree(INPUTS, base / "input")
    with Engine(EngineSettings(base_directory=base, cpu=True)) as running:
        yield running
    shutil.rmtree(base)


@pytest.mark.slow
@pytest.mark.parametrize("case", [*find_cases(family="quantised")], ids=lambda case: case.name)
def test_draws_what_comfyui_draws(engine: Engine, case: Case) -> None:
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
        assert_like_the_reference(engine, Case("quantised", name))
        assert engine.memory.report().num_streamed > 0


QUICK = ("chroma_radiance", "qwen_image21", "z_image")  # each computes some layers in a type of its own
NETWORK_PREFIXES = ("model.diffusion_model.", "model.model.", "model.")


@pytest.mark.parametrize(
    "family",
    [
        pytest.param(family, marks=() if family.name in QUICK else pytest.mark.slow, id=family.name)
        for family in registry.families()
    ],
)
def test_a_network_of_scaled_float8_draws_nearly_the_same(tmp_path: Path, family: ModelFamily) -> None:
    path = tmp_path / "models" / "checkpoints" / f"{family.name}.safetensors"
    write_random_checkpoint(path, family=family)
    tensors = load_file(path)
    scope = next(prefix for prefix in NETWORK_PREFIXES if any(name.startswith(prefix) for name in tensors))
    rounded = scaled_float8(tensors, (scope,))
    assert sum(name.endswith("scale_weight") for name in rounded) > 10
    latents = []
    for written in (tensors, rounded):
        save_file({name: tensor.contiguous() for name, tensor in written.items()}, path)
        with Engine(EngineSettings(base_directory=tmp_path, cpu=True)) as engine:
            outputs, _ = run(engine, image_of_checkpoint(family))
            latents.append(latent_of(engine, outputs))
    difference = float((latents[1] - latents[0]).norm() / latents[0].norm())
    assert 0 < difference < 0.2
