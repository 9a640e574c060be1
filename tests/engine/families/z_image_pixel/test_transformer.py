"""Z-Image on pixels: the configuration from shapes, what tells its files, its velocity, sizes, LoRAs and refusals."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from darkroom.engine.families import registry
from darkroom.engine.families.base import TensorIndex
from darkroom.engine.families.registry import family_named
from darkroom.engine.families.z_image.diffusers_names import lora_keys
from darkroom.engine.families.z_image_pixel.transformer import (
    ZImagePixelConfig,
    ZImagePixelTransformer,
    z_image_pixel_config,
)
from darkroom.engine.formats.unfilled import unfilled
from tests.parity.models import read_layouts

FAMILY = family_named("z_image_pixel")
CONFIG = replace(FAMILY.scales["small"].denoiser, width=128, heads=1, key_heads=1, num_layers=1)
FILES = [item for item in read_layouts() if item.family == "z_image_pixel" and "checkpoint" not in item.name]


def network(config: ZImagePixelConfig = CONFIG) -> ZImagePixelTransformer:
    torch.manual_seed(0)
    made = ZImagePixelTransformer(config).requires_grad_(False)
    for name, weight in made.named_parameters():
        weight.normal_(0.0, 0.1)
        if "norm" in name or "in_ln" in name:
            weight.add_(1.0)
    return made


def shapes_of(config: ZImagePixelConfig) -> dict[str, tuple[int, ...]]:
    with unfilled():
        return {name: tuple(weight.shape) for name, weight in ZImagePixelTransformer(config).state_dict().items()}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_a_file_is_the_network_of_its_shapes(file: object) -> None:
    shapes = {name: shape for name, shape in file.tensors.items() if not isinstance(shape, str)}  # type: ignore[attr-defined]
    assert registry.recognise(TensorIndex(shapes)).family is FAMILY
    assert shapes_of(z_image_pixel_config(shapes)) == shapes


@pytest.mark.parametrize("scale", ["small", "full"])
def test_the_configuration_is_read_from_the_shapes(scale: str) -> None:
    config = FAMILY.scales[scale].denoiser
    assert z_image_pixel_config(shapes_of(config)) == config


def test_patches_that_are_not_square_are_refused() -> None:
    shapes = {**shapes_of(CONFIG), "x_embedder.weight": (128, 3 * 50)}
    with pytest.raises(LookupError, match="square patches"):
        z_image_pixel_config(shapes)


@torch.no_grad()
def test_images_of_any_size_and_batch_are_drawn_each_by_itself() -> None:
    made = network()
    x, times, text = torch.randn(2, 3, 20, 13), torch.tensor([0.9, 0.4]), torch.randn(2, 5, 16)
    out = made(x, times, text)
    assert out.shape == x.shape
    alone = torch.cat([made(x[i : i + 1], times[i : i + 1], text[i : i + 1]) for i in range(2)])
    torch.testing.assert_close(out, alone, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_the_velocity_follows_from_what_the_decoder_gives() -> None:
    made = network()
    made.dec_net.final_layer.linear.weight.zero_()
    made.dec_net.final_layer.linear.bias.fill_(0.25)
    x = torch.randn(1, 3, 16, 8)
    out = made(x, torch.tensor([0.5]), torch.randn(1, 5, 16))
    torch.testing.assert_close(out, (x + 0.25) / 0.5)


def test_the_decoder_computes_in_the_type_of_its_weights() -> None:
    made = network()
    made.dec_net.to(torch.bfloat16)
    out = made(torch.randn(1, 3, 8, 8), torch.tensor([0.5]), torch.randn(1, 5, 16))
    assert out.dtype == torch.float32 and out.isfinite().all()


def test_loras_change_the_layers_that_it_has_alone() -> None:
    names = [f"diffusion_model.{name}" for name in shapes_of(CONFIG) if name.endswith(".weight")]
    keys = lora_keys(names, CONFIG)
    assert "transformer.layers.0.attention.to_q" in keys
    assert keys["diffusion_model.dec_net.cond_embed"] == "diffusion_model.dec_net.cond_embed.weight"
    assert not any("final_layer.2-1" in key or "siglip" in key for key in keys)
