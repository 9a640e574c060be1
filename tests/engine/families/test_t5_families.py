"""Families whose prompts are read by T5 alone: what tells their files apart, and what they refuse."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from darkroom.engine.diffusion.denoiser import ModelConfig
from darkroom.engine.families import registry
from darkroom.engine.families.base import NotRecognised, TensorIndex
from darkroom.engine.formats.unfilled import unfilled
from darkroom.engine.layers.t5 import T5Config, T5Model
from tests.engine.families.test_every_family import saved_index

FAMILIES = ("aura_flow", "chroma", "pixart")


def denoiser(name: str) -> Any:
    """The family's denoiser of its small scale, without weights."""
    family = registry.family_named(name)
    with unfilled():
        network = family.denoiser.build(family.scales["small"].denoiser)
    return family.denoiser_type(network, config=ModelConfig(latent_format=family.latent_format()))


def conds(name: str, *, width: int | None = None, **options: Any) -> dict[str, Any]:
    made = denoiser(name)
    width = made.diffusion_model.config.context_dim if width is None else width
    noise = torch.zeros(1, made.latent_format.latent_channels, 8, 8)
    inputs: dict[str, Any] = made.extra_conds(
        cross_attn=torch.zeros(1, 5, width), noise=noise, device=torch.device("cpu"), pooled_output=None, **options
    )
    return inputs


def t5_shapes(*, width: int, is_biased_everywhere: bool) -> dict[str, tuple[int, ...]]:
    config = T5Config(2, width, heads=1, inner_width=64, is_biased_everywhere=is_biased_everywhere)
    with unfilled():
        return {name: tuple(weight.shape) for name, weight in T5Model(config).state_dict().items()}


@pytest.mark.parametrize("name", FAMILIES)
def test_text_of_other_models_is_refused_by_name(name: str) -> None:
    assert conds(name)["c_crossattn"].cond.shape[1] == 5
    with pytest.raises(ValueError, match="got text of width 7, expected"):
        conds(name, width=7)


def test_guidance_is_zero_unless_a_node_sets_it() -> None:
    assert conds("chroma")["guidance"].cond.item() == 0.0
    assert conds("chroma", guidance=None)["guidance"].cond.item() == 0.0
    assert conds("chroma", guidance=2.5)["guidance"].cond.item() == 2.5


def test_the_size_of_an_image_has_an_aspect_ratio() -> None:
    made = denoiser("pixart")
    given = {"cross_attn": torch.zeros(1, 5, 128), "noise": torch.zeros(1, 4, 8, 8), "device": torch.device("cpu")}
    assert "c_size" not in made.extra_conds(**given)
    inputs = made.extra_conds(**given, width=800, height=600)
    assert inputs["c_size"].cond.tolist() == [[600.0, 800.0]] and inputs["c_ar"].cond.item() == 0.75
    with pytest.raises(ValueError, match="width; got 0, expected at least 1"):
        made.extra_conds(**given, width=0, height=600)


def test_a_latent_of_odd_sides_is_refused() -> None:
    network = denoiser("pixart").diffusion_model
    with pytest.raises(ValueError, match="got 9 x 8 cells, expected even"):
        network(torch.zeros(1, 4, 8, 9, device="meta"), torch.zeros(1), torch.zeros(1, 5, 128))


@pytest.mark.parametrize("text_type", ["chroma", "pixart"])
def test_a_file_of_t5_is_told_from_those_with_a_bias_in_every_layer(text_type: str) -> None:
    family, _ = registry.recognise_text_encoders([t5_shapes(width=4096, is_biased_everywhere=False)], text_type)
    assert family.name == text_type
    pile, _ = registry.recognise_text_encoders([t5_shapes(width=2048, is_biased_everywhere=True)], text_type)
    assert pile.name == "aura_flow"
    with pytest.raises(NotRecognised, match="T5"):
        registry.recognise_text_encoders([t5_shapes(width=4096, is_biased_everywhere=True)], text_type)


def test_pixart_alpha_has_the_latents_of_stable_diffusion_1() -> None:
    family = registry.family_named("pixart")
    index = saved_index(family, "small")
    sigma = registry.recognise(index)
    sizes = {f"model.diffusion_model.ar_embedder.mlp.{place}.weight": (96, 256) for place in (0, 2)}
    alpha = registry.recognise(TensorIndex({**index.shapes, **sizes}))
    file: Any = None
    assert family.parameterise(sigma.match, file).latent_format is None
    of_alpha = family.parameterise(alpha.match, file).latent_format
    assert of_alpha is not None and of_alpha.scale_factor == 0.18215
