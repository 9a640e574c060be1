"""Z-Image: what tells its networks and its text encoder, the layout of the diffusers library, LoRAs, refusals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from darkroom.engine.adapters.lora_names import rows_of
from darkroom.engine.diffusion.denoiser import Denoiser
from darkroom.engine.diffusion.model_sampling_variants import Flow
from darkroom.engine.families import registry
from darkroom.engine.families.base import TensorIndex
from darkroom.engine.families.registry import family_named
from darkroom.engine.families.z_image.diffusers_names import file_layout, lora_keys
from darkroom.engine.families.z_image.transformer import ZImageConfig
from darkroom.engine.formats.unfilled import unfilled
from darkroom.engine.layers.language_model import LanguageModel
from darkroom.engine.models.kinds.clip_vision_value import ClipVisionOutput
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


def test_the_omni_network_reads_the_tokens_of_an_image_encoder() -> None:
    shapes = shapes_of("z_image_omni")
    found = registry.recognise(TensorIndex(shapes))
    assert (found.family, found.match.variant) == (FAMILY, "omni")
    assert registry.recognise(TensorIndex(shapes_of("z_image"))).match.variant == ""
    config = FAMILY.denoiser.configure(shapes)
    assert config.vision_dim == 64 and FAMILY.denoiser.configure(shapes_of("z_image")).vision_dim == 0
    with unfilled():
        network = FAMILY.denoiser.build(config)
    assert {name: tuple(weight.shape) for name, weight in network.state_dict().items()} == shapes


def test_the_omni_network_is_known_at_full_size() -> None:
    config = replace(FAMILY.scales["full"].denoiser, vision_dim=1152)
    with unfilled():
        network = FAMILY.denoiser.build(config)
    shapes = {f"model.diffusion_model.{name}": tuple(weight.shape) for name, weight in network.state_dict().items()}
    found = registry.recognise(TensorIndex(shapes))
    assert (found.family, found.match.variant) == (FAMILY, "omni")
    assert FAMILY.denoiser.configure(registry.shapes_under(found.match.names, shapes)) == config
    millions = sum(weight.numel() for weight in network.parameters()) / 1e6
    assert FAMILY.variant_defaults["omni"].billions * 1e3 == pytest.approx(millions, rel=0.001)


def test_the_omni_network_has_diffusers_names_too() -> None:
    own = shapes_of("z_image_omni")
    refiner = {
        name.replace("context_refiner", "siglip_refiner"): shape
        for name, shape in shapes_of("z_image_diffusers").items()
        if name.startswith("context_refiner")
    }
    embedder = {name: shape for name, shape in own.items() if name.startswith(("siglip_embedder", "siglip_pad"))}
    theirs = {**shapes_of("z_image_diffusers"), **refiner, **embedder}
    names = file_layout()(theirs)
    assert names is not None and dict(registry.shapes_under(names, theirs)) == own
    keys = lora_keys([f"diffusion_model.{name}" for name in own if name.endswith(".weight")], CONFIG)
    assert (
        keys["transformer.siglip_refiner.0.attention.to_v"][0]
        == "diffusion_model.siglip_refiner.0.attention.qkv.weight"
    )


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


GIVEN: dict[str, Any] = {
    "noise": torch.zeros(1, 16, 4, 4), "device": torch.device("cpu"), "cross_attn": torch.zeros(1, 5, 16),
}  # fmt: skip
REFERENCE = torch.zeros(1, 16, 4, 4)


def made_of(config: ZImageConfig) -> Denoiser:
    with unfilled():
        network = FAMILY.denoiser.build(config)
    return denoiser(LoadedDenoiser(FAMILY, "", FAMILY.parameterisation, network))


def seen(height: int, width: int, num_tokens: int, channels: int = 8) -> ClipVisionOutput:
    output = ClipVisionOutput()
    output.last_hidden_state = torch.zeros(1, num_tokens, channels)
    output.image_sizes = [torch.Size([3, height, width])]
    return output


def test_it_is_a_flow_of_shift_three() -> None:
    made = made_of(CONFIG)
    assert isinstance(made.model_sampling, Flow) and made.model_sampling.shift == 3.0
    assert list(made.extra_conds(**GIVEN)) == ["c_crossattn"]


def test_texts_and_image_tokens_count_with_references_alone() -> None:
    made = made_of(replace(CONFIG, vision_dim=8))
    more = {"reference_latents_text_embeds": [torch.zeros(1, 3, 16)], "clip_vision_outputs": [seen(32, 48, 6)]}
    assert list(made.extra_conds(**GIVEN, **more)) == ["c_crossattn"]
    inputs = made.extra_conds(**GIVEN, **more, reference_latents=[REFERENCE])
    assert list(inputs) == ["c_crossattn", "ref_latents", "ref_contexts", "siglip_feats"]
    assert [item.shape for item in inputs["siglip_feats"].cond] == [(1, 2, 3, 8)]
    plain = made_of(CONFIG).extra_conds(**GIVEN, **more, reference_latents=[REFERENCE])
    assert list(plain) == ["c_crossattn", "ref_latents", "ref_contexts"]


def test_the_image_of_unclip_is_read_where_no_node_of_the_family_gave_one() -> None:
    made = made_of(replace(CONFIG, vision_dim=8))
    unclip = [{"clip_vision_output": seen(16, 32, 2), "strength": 1.0}]
    inputs = made.extra_conds(**GIVEN, reference_latents=[REFERENCE], unclip_conditioning=unclip)
    assert [item.shape for item in inputs["siglip_feats"].cond] == [(1, 1, 2, 8)]


@pytest.mark.parametrize("output", [seen(32, 48, 5), seen(32, 48, 6, channels=4)])
def test_tokens_of_another_image_encoder_are_refused(output: ClipVisionOutput) -> None:
    made = made_of(replace(CONFIG, vision_dim=8))
    with pytest.raises(ValueError, match="image_encoder: it does not fit the model"):
        made.extra_conds(**GIVEN, reference_latents=[REFERENCE], clip_vision_outputs=[output])


def test_inputs_of_other_models_are_refused() -> None:
    made = made_of(CONFIG)
    with pytest.raises(ValueError, match="its text encoder does not fit"):
        made.extra_conds(**GIVEN, reference_latents=[REFERENCE], reference_latents_text_embeds=[torch.zeros(1, 3, 12)])
    with pytest.raises(ValueError, match="a latent of another VAE"):
        made.extra_conds(**GIVEN, reference_latents=[torch.zeros(1, 4, 4, 4)])


def test_a_network_without_filling_tokens_takes_no_references() -> None:
    with pytest.raises(ValueError, match="reads a prompt alone; got 1, expected none"):
        made_of(replace(CONFIG, pads_tokens=False)).extra_conds(**GIVEN, reference_latents=[REFERENCE])
