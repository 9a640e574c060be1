"""The two experts of Wan 2.2, one after the other by KSamplerAdvanced, on cards that hold both, one, or part of one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from darkroom.engine.memory import machine_memory
from darkroom.engine.models.load import LoadTypes, load_unet
from tests.engine.simulated_card import GIB, engine_of, latent_of, node, run
from tests.parity.models import write_models_of
from tests.parity.recorded import Case

pytestmark = pytest.mark.timeout(600)

NUM_BLOCKS = 44  # instead of two, so that the experts are larger than what decoding and sampling take
EXPERTS = ("wan22_i2v_high", "wan22_i2v_low")


@pytest.fixture(autouse=True)
def _plenty_of_ram(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever else runs here."""
    monkeypatch.setattr(machine_memory, "total_bytes", lambda: 64 * GIB)
    monkeypatch.setattr(machine_memory, "available_bytes", lambda: 48 * GIB)


def workflow() -> dict[str, Any]:
    """Both halves of the steps, each by an expert of its own. No image is encoded: that would take tiles."""
    prompt = Case("wan", "wan22_i2v_two_experts").prompt
    del prompt["10"]["inputs"]["start_image"], prompt["9"], prompt["13"], prompt["14"]
    return prompt | {"20": node("SaveLatent", samples=["12", 0], filename_prefix="latent")}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("experts")
    write_models_of(json.dumps(workflow()), folder / "models")
    for name in EXPERTS:
        path = folder / "models" / "diffusion_models" / f"{name}.safetensors"
        tensors = load_file(path)
        block = {key: tensor for key, tensor in tensors.items() if key.startswith("blocks.1.")}
        for index in range(2, NUM_BLOCKS):
            tensors |= {key.replace("blocks.1.", f"blocks.{index}."): tensor.clone() for key, tensor in block.items()}
        save_file(tensors, path)
    return folder


@pytest.fixture(scope="module")
def expert_bytes(base: Path) -> int:
    path = base / "models" / "diffusion_models" / "wan22_i2v_high.safetensors"
    return sum(weight.nbytes for weight in load_unet(path, LoadTypes()).unet.parameters())


@pytest.fixture(scope="module")
def expected(base: Path) -> Iterator[torch.Tensor]:
    with engine_of(base) as engine:
        yield latent_of(engine, run(engine, workflow())[0])


@pytest.mark.parametrize(
    ("share", "holds"),
    [
        pytest.param(1.2, "part", marks=pytest.mark.slow),
        (4.0, "one"),
        pytest.param(8.0, "both", marks=pytest.mark.slow),
    ],
)
def test_experts_take_turns_on_a_card_that_does_not_hold_both(
    base: Path, expected: torch.Tensor, expert_bytes: int, share: float, holds: str
) -> None:
    """A small card gives two fifths of itself to weights."""
    card_bytes = int(share * expert_bytes)
    with engine_of(base, card_bytes=card_bytes) as engine:
        assert torch.equal(latent_of(engine, run(engine, workflow())[0]), expected)
        report = engine.memory.report()
        experts = [model for model in report.pool.models if model.role == "unet"]
        assert len(experts) == 2
        on_card = sorted(model.loaded_bytes for model in experts)
        whole_bytes = experts[0].size_bytes
        assert report.peak_bytes is not None and report.peak_bytes <= card_bytes
        assert (on_card[1] == whole_bytes) == (holds != "part")
        assert (on_card[0] == whole_bytes) == (holds == "both")
