"""Classes by which packs tell kinds of models apart, and functions of ComfyUI's networks that they call."""

from __future__ import annotations

import math

import pytest
import torch

from darkroom.engine.comfy.family_classes import CONFIGURATIONS, NETWORKS
from darkroom.engine.comfy.names.comfy import model_base, sd1_clip, sdxl_clip, supported_models
from darkroom.engine.comfy.names.comfy.ldm import common_dit
from darkroom.engine.comfy.names.comfy.ldm.flux import layers
from darkroom.engine.comfy.names.comfy.ldm.flux.math import apply_rope, attention
from darkroom.engine.comfy.names.comfy.ldm.wan.model import sinusoidal_embedding_1d
from darkroom.engine.comfy.names.comfy.rmsnorm import rms_norm
from darkroom.engine.comfy.names.comfy.supported_models_base import BASE
from darkroom.engine.diffusion.denoiser import Denoiser, ModelConfig
from darkroom.engine.families.registry import families, family_named
from darkroom.engine.text.clip_encoding import TextEncoderSet


def config_of(family: str, variant: str = "") -> ModelConfig:
    return ModelConfig(family=family_named(family), variant=variant)


@pytest.mark.parametrize(
    ("family", "variant", "name", "is_one"),
    [
        ("sd15", "", "SD15", True),
        ("sd15", "edit", "SD15", True),  # whose class extends it
        ("sd15", "", "SD15_instructpix2pix", False),
        ("sdxl", "inpaint", "SDXL", True),
        ("sdxl_refiner", "", "SDXL", False),
        ("flux2", "", "Flux", True),
        ("flux", "", "FluxInpaint", False),
        ("hunyuan_video", "skyreels", "HunyuanVideo", True),
        ("wan", "image", "WAN21_T2V", True),
        ("wan", "", "WAN21_I2V", False),
        ("wan", "scail2", "WAN21_T2V", True),
        ("wan", "scail2", "WAN21_SCAIL", False),
        ("sd2", "unclip", "SD20", True),
        ("sd2", "pose", "SD20", True),
        ("z_image_pixel", "", "Lumina2", True),
        ("mage_flow", "", "QwenImage", False),
    ],
)
def test_a_configuration_is_of_its_familys_class(family: str, variant: str, name: str, is_one: bool) -> None:
    assert isinstance(config_of(family, variant), getattr(supported_models, name)) is is_one
    assert isinstance(config_of(family, variant), BASE)


def test_each_class_names_families_and_variants_that_there_are() -> None:
    variants = {family.name: {*family.variants, ""} for family in families()}
    for _, entries in (*CONFIGURATIONS.values(), *NETWORKS.values()):
        for entry in entries.split():
            family, _, variant = entry.partition(":")
            assert variant in variants[family], entry


def test_other_values_are_of_no_such_class_nor_of_one_that_a_pack_derives() -> None:
    assert not isinstance(family_named("sdxl"), supported_models.SDXL)  # type: ignore[attr-defined]
    mine = type("Mine", (supported_models.SDXL,), {})  # type: ignore[attr-defined]
    assert not isinstance(config_of("sdxl"), mine)


@pytest.mark.parametrize(
    ("family", "name", "is_one"),
    [
        ("sd3", "SD3", True),
        ("sd3", "HiDream", False),
        ("chroma_radiance", "Flux", True),
        ("flux2", "Flux", True),
        ("flux", "LongCatImage", False),
        ("boogu", "Omnigen2", True),
        ("mage_flow", "QwenImage", True),
        ("z_image_pixel", "Lumina2", True),
    ],
)
def test_a_network_is_of_its_familys_class_and_of_those_it_extends(family: str, name: str, is_one: bool) -> None:
    network = Denoiser(torch.nn.Identity(), config=config_of(family))
    assert isinstance(network, getattr(model_base, name)) is is_one


def test_text_encoders_are_of_their_familys_class() -> None:
    encoders = TextEncoderSet([], family=family_named("sdxl"))
    assert isinstance(encoders, sdxl_clip.SDXLClipModel)  # type: ignore[attr-defined]
    assert not isinstance(encoders, sdxl_clip.SDXLRefinerClipModel)  # type: ignore[attr-defined]


def test_weights_of_brackets_multiply_the_weight_around_them() -> None:
    hidden = sd1_clip.escape_important(r"a (fox:1.5) \(red\)")
    parts = sd1_clip.token_weights(hidden, 2.0)
    assert [(sd1_clip.unescape_important(text), weight) for text, weight in parts] == [
        ("a ", 2.0), ("fox", 1.5), (" (red)", 2.0),
    ]  # fmt: skip


def test_rotations_turn_neighbouring_pairs_by_their_positions() -> None:
    positions = torch.tensor([[[1.0, 0.0]]])  # one token, two axes
    rotations = layers.EmbedND(4, 10000, [2, 2])(positions)
    assert rotations.shape == (1, 1, 1, 2, 2, 2)
    turned, _ = apply_rope(torch.tensor([[[[1.0, 0.0, 3.0, 4.0]]]]), torch.zeros(1, 1, 1, 4), rotations)
    assert torch.allclose(turned.flatten(), torch.tensor([math.cos(1), math.sin(1), 3.0, 4.0]))


def test_attention_joins_the_heads() -> None:
    q, k, v = torch.randn(3, 1, 2, 5, 8).unbind()
    assert attention(q, k, v, None).shape == (1, 5, 16)


def test_times_are_embedded_by_cosines_first() -> None:
    (embedded,) = layers.timestep_embedding(torch.tensor([0.5]), 4, time_factor=2.0)
    assert torch.allclose(embedded, torch.tensor([math.cos(1), math.cos(0.01), math.sin(1), math.sin(0.01)]))
    assert torch.allclose(sinusoidal_embedding_1d(4, torch.tensor([1])), embedded[None])


def test_only_the_ranges_named_are_modulated() -> None:
    tokens = torch.ones(1, 3, 1)
    scales, shifts = torch.tensor([[[2.0], [3.0]]]), torch.tensor([[[0.0], [1.0]]])
    assert layers.apply_mod(tokens, scales, shifts, [(1, None, 1)]).flatten().tolist() == [1.0, 4.0, 4.0]
    assert layers.apply_mod(torch.ones(1, 3, 1), torch.tensor(2.0)).flatten().tolist() == [2.0, 2.0, 2.0]


def test_a_latent_is_padded_at_its_ends_by_wrapping_around() -> None:
    latent = torch.arange(6.0).reshape(1, 1, 2, 3)
    assert common_dit.pad_to_patch_size(latent, (2, 2)).flatten().tolist() == [0.0, 1.0, 2.0, 0.0, 3.0, 4.0, 5.0, 3.0]


def test_the_root_of_the_mean_square_is_one_before_the_weight() -> None:
    normed = rms_norm(torch.tensor([[3.0, 4.0]]), torch.tensor([1.0, 2.0]), eps=0.0)
    assert torch.allclose(normed, torch.tensor([[3.0, 8.0]]) / math.sqrt(12.5))
