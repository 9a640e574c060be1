"""Flux: guidance, further channels, reference images, the marks of its networks, and LoRAs on joined layers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from darkroom.engine.diffusion.conditions import ConstantInput
from darkroom.engine.diffusion.denoiser import Denoiser
from darkroom.engine.diffusion.model_sampling_variants import Flow, FluxFlow
from darkroom.engine.families.base import Match
from darkroom.engine.families.registry import family_named
from darkroom.engine.formats.unfilled import unfilled
from darkroom.engine.models.load import LoadedDenoiser
from darkroom.engine.models.store import denoiser
from tests.engine.families.test_every_family import saved_index

FAMILY = family_named("flux")
SMALL = FAMILY.scales["small"].denoiser
NOISE = torch.zeros(2, 16, 4, 6)


def model(in_channels: int = 16) -> Denoiser:
    with unfilled():
        network = FAMILY.denoiser.build(replace(SMALL, in_channels=in_channels))
    return denoiser(LoadedDenoiser(FAMILY, "", FAMILY.parameterisation, network))


def conditions(in_channels: int = 16, **options: Any) -> dict[str, Any]:
    given = {"noise": NOISE, "device": torch.device("cpu"), "pooled_output": torch.zeros(1, 64), **options}
    return model(in_channels).extra_conds(**given)


def test_guidance_is_three_and_a_half_unless_a_node_sets_it_or_disables_it() -> None:
    assert conditions()["guidance"].cond.tolist() == [3.5]
    assert conditions(guidance=2.0)["guidance"].cond.tolist() == [2.0]
    assert "guidance" not in conditions(guidance=None)


def test_reference_images_are_scaled_latents_placed_by_the_method() -> None:
    latents = [torch.rand(1, 16, 4, 4), torch.rand(1, 16, 2, 6)]
    found = conditions(reference_latents=latents, reference_latents_method="index")
    for item, latent in zip(found["ref_latents"].cond, latents, strict=True):
        torch.testing.assert_close(item, (latent - 0.1159) * 0.3611)
    assert isinstance(found["ref_latents_method"], ConstantInput) and found["ref_latents_method"].cond == "index"
    assert "ref_latents" not in conditions() and "ref_latents_method" not in conditions(reference_latents=latents)


def test_a_network_of_the_noisy_latent_alone_has_no_further_channels() -> None:
    assert "c_concat" not in conditions(concat_latent_image=torch.rand(1, 16, 4, 6))


def test_a_network_of_one_image_sees_it_scaled() -> None:
    image = torch.rand(1, 16, 4, 6)
    found = conditions(32, concat_latent_image=image)["c_concat"].cond
    torch.testing.assert_close(found, ((image - 0.1159) * 0.3611).expand(2, -1, -1, -1))
    torch.testing.assert_close(conditions(32)["c_concat"].cond, torch.full((2, 16, 4, 6), -0.1159 * 0.3611))


def test_a_network_that_paints_sees_the_mask_by_pixels_of_a_cell() -> None:
    mask = torch.zeros(1, 1, 32, 48)
    mask[0, 0, 8, 19] = 1.0  # the cell of row 1, column 2: its first row, its fourth pixel
    found = conditions(96, concat_latent_image=torch.rand(1, 16, 4, 6), concat_mask=mask)["c_concat"].cond
    assert found.shape == (2, 80, 4, 6)
    assert found[0, 16:].nonzero().tolist() == [[3, 1, 2]]
    everywhere = conditions(96)["c_concat"].cond
    assert everywhere[:, 16:].eq(1).all()


def test_a_network_without_guidance_is_the_one_of_few_steps() -> None:
    index = saved_index(FAMILY, "small")
    match = FAMILY.detect(index)
    assert match is not None
    file: Any = None
    dev = FAMILY.parameterise(match, file)
    names = {name: item for name, item in match.names.items() if not name.startswith("guidance_in.")}
    schnell = FAMILY.parameterise(Match(match.specificity, names), file)
    settings: Any = type("Config", (), {})()
    settings.sampling_settings = dev.settings
    assert isinstance(dev.kind(settings), FluxFlow)
    settings.sampling_settings = schnell.settings
    straight = schnell.kind(settings)
    assert isinstance(straight, Flow) and float(straight.sigma(torch.tensor(0.25))) == 0.25


@pytest.mark.parametrize("missing", ["img_in.weight", "vector_in.in_layer.weight"])
def test_networks_of_such_blocks_with_other_inputs_are_others(missing: str) -> None:
    index = saved_index(FAMILY, "small")
    shapes = {name: shape for name, shape in index.shapes.items() if not name.endswith(missing)}
    assert FAMILY.detect(replace(index, shapes=shapes)) is None


def test_loras_of_single_layers_name_their_rows() -> None:
    keys = FAMILY.denoiser_lora_keys([], SMALL)
    joined = "diffusion_model.single_blocks.1.linear1.weight"
    single = "transformer.single_transformer_blocks.1"
    assert keys[f"{single}.attn.to_k"] == (joined, (0, 128, 128))
    assert keys[f"{single}.proj_mlp"] == (joined, (0, 384, 512))
    assert keys["diffusion_model.single_blocks.1.linear1_qkv"] == (joined, (0, 0, 384))
    assert keys["lora_transformer_transformer_blocks_0_attn_add_v_proj"] == (
        "diffusion_model.double_blocks.0.txt_attn.qkv.weight",
        (0, 256, 128),
    )


@pytest.mark.parametrize("shape", [(1, 4, 8, 8), (1, 16, 1, 8, 8, 1), (16, 8, 8)])
def test_reference_images_of_another_vae_are_refused(shape: tuple[int, ...]) -> None:
    found = conditions(reference_latents=[torch.ones(1, 16, 4, 6)], reference_latents_method="uxo")
    assert found["ref_latents"].cond[0].shape == (1, 16, 4, 6) and found["ref_latents_method"].cond == "uxo"
    with pytest.raises(ValueError, match="reference latents: a latent of another VAE than the model's; got shape"):
        conditions(reference_latents=[torch.ones(shape)])
