"""Files of CogVideoX: names of the diffusers library, variants, the scale of latents, LoRAs, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from darkroom.engine.families import registry
from darkroom.engine.families.base import NotRecognised, Shape, TensorIndex
from darkroom.engine.families.cogvideox.family import FAMILY
from darkroom.engine.families.cogvideox.transformer import CogVideoXConfig, CogVideoXTransformer
from darkroom.engine.families.cogvideox.transformer_files import DENOISER, diffusers_name, lora_keys, own_name
from darkroom.engine.formats.unfilled import unfilled

TINY = CogVideoXConfig(hidden_size=128, num_layers=2, intermediate_size=64, time_embed_dim=32, text_dim=24)


def shapes_of(config: CogVideoXConfig) -> dict[str, Shape]:
    with unfilled():
        return {name: tuple(item.shape) for name, item in CogVideoXTransformer(config).state_dict().items()}


def in_diffusers(shapes: Mapping[str, Shape], prefix: str = "") -> dict[str, Shape]:
    parts = ((*name.rpartition("."), shape) for name, shape in shapes.items())
    return {f"{prefix}{diffusers_name(layer)}{dot}{end}": shape for layer, dot, end, shape in parts}


def test_names_of_layers_in_the_diffusers_library_are_brought_back() -> None:
    named = {
        "blocks.12.q": "transformer_blocks.12.attn1.to_q",
        "blocks.0.attn_out": "transformer_blocks.0.attn1.to_out.0",
        "blocks.0.ff_proj": "transformer_blocks.0.ff.net.0.proj",
        "blocks.0.norm1.linear": "transformer_blocks.0.norm1.linear",
        "ofs_embedding_linear_2": "ofs_embedding.linear_2",
        "patch_embed.text_proj": "patch_embed.text_proj",
    }
    assert {layer: diffusers_name(layer) for layer in named} == named
    assert {own_name(theirs): theirs for theirs in named.values()} == named


@pytest.mark.parametrize("prefix", ["", "transformer.", "model.diffusion_model."])
@pytest.mark.parametrize(("channels", "variant"), [(16, ""), (32, "image"), (48, "inpaint"), (33, "")])
def test_files_of_the_diffusers_library_are_recognised(prefix: str, channels: int, variant: str) -> None:
    shapes = shapes_of(replace(TINY, in_channels=channels, offset_dim=32))
    recognised = registry.recognise(TensorIndex(in_diffusers(shapes, prefix)))
    assert (recognised.family.name, recognised.match.variant) == ("cogvideox", variant)
    assert recognised.match.names.keys() == shapes.keys()


@pytest.mark.parametrize(("hidden_size", "scale"), [(1920, 1.15258426), (3072, 0.7)])
def test_latents_are_scaled_by_the_number_of_heads(hidden_size: int, scale: float) -> None:
    shapes = shapes_of(replace(TINY, hidden_size=hidden_size, num_layers=1))
    match = FAMILY.detect(TensorIndex(shapes))
    assert match is not None
    file: Any = SimpleNamespace(shapes=shapes)
    latent_format = FAMILY.parameterise(match, file).latent_format or FAMILY.latent_format
    assert latent_format.scale_factor == scale


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"blocks.0.norm1.linear.weight": (6 * 100, 32)}, "hidden size 100"),
        ({"blocks.0.norm1.linear.weight": (6 * 64 * 4096, 32)}, "up to 16384"),
        ({"blocks.0.norm1.linear.weight": (768,)}, "other dimensions"),
        ({"patch_embed.proj.weight": (128, 1 << 20)}, "hidden size 128"),
        ({"blocks.999.norm1.norm.weight": (128,)}, "1000 layers"),
    ],
)
def test_networks_of_sizes_that_none_has_are_refused(changed: dict[str, Shape], problem: str) -> None:
    with pytest.raises(NotRecognised, match=problem):
        DENOISER.configure({**shapes_of(TINY), **changed})


def test_every_layer_has_the_names_of_both_libraries_in_lora_files() -> None:
    names = [f"diffusion_model.{name}" for name in shapes_of(TINY)]
    keys = lora_keys(names, TINY)
    query = "diffusion_model.blocks.1.q.weight"
    for key in (
        "diffusion_model.blocks.1.q",
        "lora_unet_blocks_1_q",
        "transformer.transformer_blocks.1.attn1.to_q",
        "transformer_blocks.1.attn1.to_q",
        "lora_unet_transformer_blocks_1_attn1_to_q",
    ):
        assert keys[key] == query
    assert set(keys.values()) >= {name for name in names if name.endswith(".weight")}
