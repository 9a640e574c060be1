"""The autoencoder of videos of LTX-2.4: what files tell, its sizes, and that it draws the same pixels each time."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import torch

from darkroom.engine.families import registry
from darkroom.engine.families.base import NotRecognised
from darkroom.engine.families.ltx2.diffusion_decoder import Enlargement, EnlargingStage, axis_dims
from darkroom.engine.families.ltx2.diffusion_vae import DiffusionVae, DiffusionVaeConfig
from darkroom.engine.families.ltx2.diffusion_vae_files import (
    DIFFUSION_AUTOENCODER,
    as_described,
    configure,
    description,
)
from darkroom.engine.formats.unfilled import unfilled

SMALL: DiffusionVaeConfig = DIFFUSION_AUTOENCODER.sizes["small"]
OTHER = replace(
    SMALL, decoder=replace(SMALL.decoder, window=(3, 3, 5), num_steps=2, prediction="v", time_scale=500.0)
)  # fmt: skip


def shapes_of(config: DiffusionVaeConfig) -> dict[str, tuple[int, ...]]:
    with unfilled():
        network = DiffusionVae(config)
    return {name: tuple(weight.shape) for name, weight in network.state_dict().items()}


def metadata_of(config: DiffusionVaeConfig) -> dict[str, str]:
    return {name: json.dumps(fields) for name, fields in description(config).items()}


def network_of(config: DiffusionVaeConfig) -> DiffusionVae:
    torch.manual_seed(0)
    network = DiffusionVae(config).requires_grad_(False).eval()
    for name, weight in network.named_parameters():
        torch.nn.init.normal_(weight, 1.0 if "norm" in name or "std-of" in name else 0.0, 0.06)
    return network


@pytest.mark.parametrize("config", [SMALL, OTHER, DIFFUSION_AUTOENCODER.sizes["full"]])
def test_shapes_and_metadata_tell_the_network(config: DiffusionVaeConfig) -> None:
    shapes = shapes_of(config)
    assert as_described(configure(shapes), metadata_of(config)) == config
    family, names = registry.recognise_vae({f"vae.{name}": shape for name, shape in shapes.items()})
    assert (family.name, family.vae) == ("ltx2", DIFFUSION_AUTOENCODER)
    assert set(names) == set(shapes)


def test_a_checkpoint_gives_it_as_the_vae_of_its_family() -> None:
    ltx2 = registry.family_named("ltx2")
    found = registry.checkpoint_vae(ltx2, {f"vae.{name}": shape for name, shape in shapes_of(SMALL).items()})
    assert found is not None and found[0] is DIFFUSION_AUTOENCODER
    assert registry.checkpoint_vae(ltx2, {"vocoder.resblocks.0.convs1.0.weight": (1, 1, 1)}) is None


@pytest.mark.parametrize(
    ("described", "message"),
    [
        ({"model_output_type": "noise"}, "other layers"),
        ({"encoder": {"norm_layer": "group_norm"}}, "other layers"),
        ({"decoder": {"stage5_kernel": [3, 3, 65]}}, "expected 1 to 64"),
        ({"decoder": {"default_num_inference_steps": 10**9}}, "expected 1 to 1000"),
        ({"decoder": {"upsamples": [[[1, 2, 2], 2]]}}, "1 stages described, 4 in the file"),
        ({"decoder": {"stage_kernels": [[3, 3]] * 5}}, "do not describe it"),
        (3, "do not describe it"),
    ],
)
def test_metadata_of_other_networks_are_refused(described: Any, message: str) -> None:
    with pytest.raises(NotRecognised, match=message):
        as_described(SMALL, {"config": json.dumps({"vae": described})})


@pytest.mark.parametrize("config", [SMALL, OTHER])
@torch.no_grad()
def test_videos_are_drawn_alike_each_time(config: DiffusionVaeConfig) -> None:
    network = network_of(config)
    latents = torch.randn(1, 128, 2, 1, 2)
    torch.manual_seed(1)
    first = network.decode(latents)
    torch.manual_seed(2)
    assert first.shape == (1, 3, 9, 32, 64) and first.std() > 1e-3
    assert torch.equal(network.decode(latents), first)
    assert network.encode(torch.rand(1, 3, 12, 32, 64)).shape == (1, 128, 2, 1, 2)


def test_the_first_frame_stays_one() -> None:
    stage = EnlargingStage(2, 1, (1, 1, 1), (2, 1, 1), 1)
    layer = Enlargement(stage).requires_grad_(False)
    layer.proj.weight.copy_(torch.eye(2))
    layer.proj.bias.zero_()
    frames = torch.tensor([[1.0, 2.0], [3.0, 4.0]]).view(1, 2, 1, 1, 2)
    assert layer(frames).flatten().tolist() == [2.0, 3.0, 4.0]


def test_all_channels_of_a_head_rotate() -> None:
    assert axis_dims(64) == (16, 24, 24)
    assert all(sum(axis_dims(size)) == size for size in (32, 64, 128))
