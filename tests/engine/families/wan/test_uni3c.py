"""Uni3C: how its files are read, when it is at work, and what it adds to."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from darkroom.engine.families import registry
from darkroom.engine.families.wan.nodes.camera_control import CameraControlPatch
from darkroom.engine.families.wan.uni3c import Uni3c, Uni3cConfig
from darkroom.engine.families.wan.vae_files import WanLatentFormat
from tests.parity.models import LAYOUTS

CONFIG = Uni3cConfig(width=192, num_blocks=2, inner_width=96, in_channels=36, embedded_width=64, model_width=128)
GRID = (2, 2, 3)


class Patcher:
    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model


class Encoder:
    """A VAE of cells of 8 pixels and latent frames of four, that counts its calls."""

    calls = 0

    def temporal_compression_decode(self) -> int:
        return 4

    def spacial_compression_encode(self) -> int:
        return 8

    def encode(self, frames: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        assert frames.shape == (5, 32, 48, 3)
        return torch.zeros(1, 16, 2, 4, 6)


@pytest.fixture(scope="module")
def network() -> Uni3c:
    torch.manual_seed(0)
    made = Uni3c(CONFIG).requires_grad_(False)
    for name, weight in made.named_parameters():
        if "norm_" in name:
            weight.fill_(1.0)
    return made


def patch_of(
    network: Uni3c, strength: float = 1.0, levels: tuple[float, float] = (1.0, 0.0), encoder: Any = None
) -> CameraControlPatch:
    given: Any = Patcher(network)
    vae: Any = Encoder() if encoder is None else encoder
    return CameraControlPatch(given, vae, WanLatentFormat(), torch.rand(1, 20, 60, 3), strength, levels)


def behind(patch: CameraControlPatch, index: int, img: torch.Tensor, sigma: float, **more: Any) -> torch.Tensor:
    options = {"sigmas": torch.tensor([sigma]), "cond_or_uncond": [0, 1]}
    inputs = {
        "img": img, "x": torch.ones(2, 16, 2, 4, 6), "vec": torch.ones(2, 1, 128), "block_index": index,
        "img_offset": 0, "transformer_options": options,
    }  # fmt: skip
    out: torch.Tensor = patch({**inputs, **more})["img"]
    return out


def test_a_file_of_the_diffusers_library_is_read_without_what_is_not_used() -> None:
    tensors = json.loads((LAYOUTS / "wan/wan_uni3c.json").read_text("utf-8"))["tensors"]
    shapes = {name: tuple(shape) for name, shape in tensors.items()}
    found = registry.recognise_model_patch(shapes)
    assert found is not None and found[0].name == "wan"
    _, kind, names = found
    own = registry.shapes_under(names, shapes)
    assert names["controlnet_blocks.0.self_attn.o.weight"] == "controlnet_blocks.0.self_attn.to_out.0.weight"
    built = kind.build(kind.configure(own))
    assert {name: tuple(weight.shape) for name, weight in built.state_dict().items()} == own


def test_both_conditions_get_the_same_behind_each_of_its_blocks(network: Uni3c) -> None:
    patch, img = patch_of(network), torch.zeros(2, 14, 128)
    for index in range(CONFIG.num_blocks):
        out = behind(patch, index, img, 0.5, img_offset=2)
        assert out[:, 2:].any() and not out[:, :2].any()
        torch.testing.assert_close(out[0], out[1])
    torch.testing.assert_close(behind(patch, CONFIG.num_blocks, img, 0.5), img)


def test_strength_scales_what_is_added(network: Uni3c) -> None:
    img = torch.zeros(2, 12, 128)
    whole, half = behind(patch_of(network), 0, img, 0.5), behind(patch_of(network, 0.5), 0, img, 0.5)
    torch.testing.assert_close(half, whole / 2)


@pytest.mark.parametrize(("sigma", "is_at_work"), [(0.9, False), (0.75, True), (0.25, True), (0.2, False)])
def test_it_is_at_work_between_two_noise_levels(network: Uni3c, sigma: float, is_at_work: bool) -> None:
    patch, img = patch_of(network, levels=(0.75, 0.25)), torch.zeros(2, 12, 128)
    assert bool(behind(patch, 0, img, sigma).any()) == is_at_work
    assert bool(behind(patch, 1, img, sigma).any()) == is_at_work


def test_the_render_is_encoded_once_for_a_size(network: Uni3c) -> None:
    encoder = Encoder()
    patch, img = patch_of(network, encoder=encoder), torch.zeros(2, 12, 128)
    for _ in range(2):
        behind(patch, 0, img, 0.5)
    assert encoder.calls == 1
