"""Published forms of SeedVR2's files: int8 whose columns are rotated, as the official templates load it."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file

from tests.engine.nodes.small_store import small_store
from tests.parity.models import read_layouts, write_model
from tests.parity.quantised_models import write_quantised

NAME = "seedvr2_3b"


@torch.no_grad()
def restored(models: Path, name: str) -> torch.Tensor:
    model = small_store(models).unet(f"{name}.safetensors")
    generator = torch.Generator().manual_seed(0)
    x, condition = (torch.randn(1, channels, 2, 8, 8, generator=generator) for channels in (16, 17))
    with model.in_use():
        text = model.weights.current_weight("diffusion_model.positive_conditioning")[None].float()
        out: torch.Tensor = model.model.diffusion_model(x, torch.tensor([900.0]), text, condition=condition)
    return out


def test_a_network_of_rotated_int8_restores_nearly_the_same(tmp_path: Path) -> None:
    (layout,) = (item for item in read_layouts() if item.name == NAME)
    write_model(layout, tmp_path)
    folder = tmp_path / "diffusion_models"
    form = {"kind": "comfy_quant", "format": "int8_rotated"}
    write_quantised(folder / "rotated.safetensors", load_file(folder / f"{NAME}.safetensors"), form)
    plain, rotated = (restored(tmp_path, name) for name in (NAME, "rotated"))
    assert 0 < (rotated - plain).norm() / plain.norm() < 0.03
