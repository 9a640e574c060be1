"""Z-Image: what tells its networks and its text encoder, the layout of the diffusers library, LoRAs, refusals."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from darkroom.engine.adapters.lora_names import rows_of
from darkroom.engine.diffusion.model_sampling_variants import Flow
from darkroom.engine.families import registry
from darkroom.engine.families.base import NotRecognised, TensorIndex
from darkroom.engine.families.registry import family_named
from darkroom.engine.families.z_image.diffusers_names import file_layout, lora_keys
from darkroom.engine.formats.unfilled import unfilled
from darkroom.engine.layers.language_model import LanguageModel
from darkroom.engine.models.load import LoadedDenoiser
from darkroom.engine.models.store import denoiser
from tests.parity.models import read_layouts

FAMILY = family_named("z_image")
CONFIG = FAMILY.scales["small"].denoiser
LAYOUTS = {layout.name: layout for layout in read_layouts() if layout.family == "z_image"}


def shapes_of(name: str) -> dict[str, tuple[int, ...]]:
    return {key: shape for key, shape in LAYOUTS[name].tensors.items() if not isinstance(shape, str)}


def test_files_of_both_layouts_are_one_network() -> None:
    own, theirs = shapes_of("z_image"), shapes_of("z_image_diffusers")
    names = file_layout()(theirs)
    assert names is not None
    assert dict(registry.shapes_under(names, theirs)) == own
    assert registry.recognise(TensorIndex(theirs)).family is registry.recognise(TensorIndex(own)).family is FAMILY
    assert FAMILY.denoiser.configure(own).heads == 3


def test_a_network_of_images_beside_its_prompt_is_refused_by_name() -> None:
    shapes = {**shapes_of("z_image"), "siglip_embedder.1.weight": (8, 8)}
    assert registry.recognise(TensorIndex(shapes)).family is FAMILY
    with pytest.raises(NotRecognised, match="a Z-Image network of images beside its prompt"):
        FAMILY.denoiser.configure(shapes)


def test_a_network_of_pixels_is_refused_by_name() -> None:
    with pytest.raises(NotRecognised, match="Z-Image in pixel space"):
        registry.recognise(TensorIndex({**shapes_of("z_image"), "dec_net.cond_embed.weight": (8, 8)}))


def test_the_type_of_its_text_encoder_is_shared_and_the_file_decides() -> None:
    for name in ("z_image", "lumina2"):
        family = family_named(name)
        (encoder,) = family.text
        with unfilled():
            model = LanguageModel(family.scales["small"].text[encoder.encoding.slot])
        shapes = {key: tuple(weight.shape) for key, weight in model.state_dict().items()}
        assert registry.recognise_text_encoders([shapes], "lumina2")[0] is family


def test_loras_of_trainers_change_their_rows_of_the_joined_layer() -> None:
    keys = lora_keys(["diffusion_model.layers.0.attention.qkv.weight"], CONFIG)
    rows = rows_of("diffusion_model.layers.0.attention.qkv.weight", CONFIG.width, CONFIG.width)
    for prefix in ("diffusion_model.", "transformer.", ""):
        assert keys[f"{prefix}layers.0.attention.to_k"] == rows
    assert keys["lycoris_layers_0_attention_to_k"] == rows
    assert keys["lora_unet_layers_0_attention_qkv"] == rows[0]


def test_it_is_a_flow_of_shift_three_and_takes_no_reference_images() -> None:
    with unfilled():
        network = FAMILY.denoiser.build(CONFIG)
    made = denoiser(LoadedDenoiser(FAMILY, "", FAMILY.parameterisation, network))
    assert isinstance(made.model_sampling, Flow) and made.model_sampling.shift == 3.0
    given: dict[str, Any] = {
        "noise": torch.zeros(1, 16, 4, 4), "device": torch.device("cpu"), "cross_attn": torch.zeros(1, 5, 16),
    }  # fmt: skip
    assert list(made.extra_conds(**given)) == ["c_crossattn"]
    with pytest.raises(ValueError, match="reads a prompt alone; got 1, expected none"):
        made.extra_conds(**given, reference_latents=[torch.zeros(1, 16, 4, 4)])
