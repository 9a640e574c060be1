"""T2I adapters load from either of their two layouts, full or light."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from engine.architectures.t2i_adapter import Adapter, AdapterConfig, LightAdapter
from engine.checkpoints.load import LoadTypes
from engine.checkpoints.load_controlnet import load_controlnet
from engine.errors import BadModelFile

CHANNELS = (8, 16, 32, 32)


def _as_diffusers(name: str) -> str:
    if not name.startswith("body."):
        return f"adapter.{name}"
    _, block, rest = name.split(".", 2)
    level, index = divmod(int(block), 2)
    inner = rest if rest.startswith("in_conv") else f"resnets.{index}.{rest}"
    return f"adapter.body.{level}.{inner}"


def _weights(network: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.contiguous() for name, tensor in network.state_dict().items()}


def test_both_layouts_of_an_adapter_are_the_same_network(tmp_path: Path) -> None:
    weights = _weights(Adapter(AdapterConfig(192, CHANNELS)))
    save_file(weights, tmp_path / "original.safetensors")
    save_file({_as_diffusers(name): tensor for name, tensor in weights.items()}, tmp_path / "diffusers.safetensors")
    picture = torch.rand(1, 3, 72, 64)
    first, second = (
        load_controlnet(tmp_path / f"{name}.safetensors", LoadTypes(unet=torch.float16))(picture)
        for name in ("original", "diffusers")
    )
    assert [None if item is None else tuple(item.shape[1:]) for item in first["input"]] == [
        (32, 2, 1), None, None, (32, 3, 2), None, None, (16, 5, 4), None, None, (8, 9, 8), None, None,
    ]  # fmt: skip
    for one, other in zip(first["input"], second["input"], strict=True):
        assert (one is None and other is None) or torch.equal(one, other)


def test_a_light_adapter_tells_its_own_shape(tmp_path: Path) -> None:
    save_file(_weights(LightAdapter(64, CHANNELS, num_blocks=2)), tmp_path / "light.safetensors")
    network = load_controlnet(tmp_path / "light.safetensors", LoadTypes())
    additions = network(torch.rand(2, 1, 64, 64))["input"]
    assert tuple(additions[-3].shape) == (2, 8, 8, 8)


def test_an_adapter_with_a_missing_weight_is_refused(tmp_path: Path) -> None:
    weights = _weights(Adapter(AdapterConfig(64, CHANNELS)))
    del weights["body.3.block1.bias"]
    save_file(weights, tmp_path / "broken.safetensors")
    with pytest.raises(BadModelFile, match=r"body\.3\.block1\.bias"):
        load_controlnet(tmp_path / "broken.safetensors", LoadTypes())
