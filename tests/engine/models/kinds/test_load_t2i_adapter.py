"""T2I adapters load from either of their two layouts, full or light."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from darkroom.engine.errors import BadModelFile
from darkroom.engine.families.cascade.controlnet import CascadeControl, CascadeControlConfig, LatentBackboneConfig
from darkroom.engine.models.kinds.load_controlnet import load_controlnet
from darkroom.engine.models.kinds.t2i_adapter import Adapter, AdapterConfig, LightAdapter
from darkroom.engine.models.load import LoadTypes

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
    image = torch.rand(1, 3, 72, 64)
    first, second = (
        load_controlnet(tmp_path / f"{name}.safetensors", LoadTypes(unet=torch.float16))(image)
        for name in ("original", "diffusers")
    )
    assert [None if item is None else tuple(item.shape[1:]) for item in first["input"]] == [
        (32, 2, 1), None, None, (32, 3, 2), None, None, (16, 5, 4), None, None, (8, 9, 8), None, None,
    ]  # fmt: skip
    for one, other in zip(first["input"], second["input"], strict=True):
        assert (one is None and other is None) or torch.equal(one, other)


def test_a_light_adapter_shows_its_own_shape(tmp_path: Path) -> None:
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


def _cascade_weights(config: CascadeControlConfig) -> dict[str, torch.Tensor]:
    network = CascadeControl(config)
    for name, weight in network.named_parameters():
        torch.nn.init.ones_(weight) if name.endswith("running_var") else torch.nn.init.normal_(weight, std=0.05)
    return _weights(network) | {"backbone.0.1.num_batches_tracked": torch.zeros((), dtype=torch.int64)}


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_a_control_of_stable_cascade_adds_to_the_residual_blocks_it_was_trained_for(
    tmp_path: Path, channels: int
) -> None:
    save_file(_cascade_weights(CascadeControlConfig(channels, 16)), tmp_path / "canny.safetensors")
    network = load_controlnet(tmp_path / "canny.safetensors", LoadTypes())
    assert isinstance(network, CascadeControl)
    assert (network.input_channels, network.compression_ratio, network.upscale_algorithm) == (channels, 32, "bilinear")
    with torch.no_grad():
        additions = network(torch.rand(2, channels, 64, 96))["input"][::-1]
    assert [place for place, item in enumerate(additions) if item is not None] == [0, 4, 8, 12, 51, 55, 59, 63]
    assert additions[63] is not None and additions[63].shape == (2, 16, 2, 3)


def test_a_control_of_stable_cascade_that_reads_latents_shows_its_widths(tmp_path: Path) -> None:
    config = CascadeControlConfig(16, 8, latents=LatentBackboneConfig(32, 24, 3))
    save_file(_cascade_weights(config), tmp_path / "super.safetensors")
    network = load_controlnet(tmp_path / "super.safetensors", LoadTypes())
    assert isinstance(network, CascadeControl) and network.config == config
    assert (network.compression_ratio, network.upscale_algorithm) == (1, "nearest-exact")
    with torch.no_grad():
        additions = network(torch.rand(1, 16, 8, 8))["input"]
    assert additions[0] is not None and additions[0].shape == (1, 8, 8, 8)


def test_a_control_of_stable_cascade_without_a_projection_is_refused(tmp_path: Path) -> None:
    weights = _cascade_weights(CascadeControlConfig(3, 16))
    del weights["projections.5.2.weight"]
    save_file(weights, tmp_path / "broken.safetensors")
    with pytest.raises(BadModelFile, match=r"projections\.5\.2\.weight"):
        load_controlnet(tmp_path / "broken.safetensors", LoadTypes())
