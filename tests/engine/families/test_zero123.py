"""Stable Zero123: how its files are told from InstructPix2Pix's, and what its network is given."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from darkroom.engine.families.base import ModelFamily, TensorIndex
from darkroom.engine.families.registry import family_named, recognise
from darkroom.engine.families.sd15.unet_files import PREFIX
from darkroom.engine.families.zero123.denoiser import ViewDenoiser
from darkroom.engine.families.zero123.unet import Zero123Unet
from darkroom.engine.formats.unfilled import unfilled


@pytest.fixture(scope="module")
def family() -> ModelFamily:
    return family_named("zero123")


def test_the_projection_beside_the_network_distinguishes_it_from_one_that_edits_images(family: ModelFamily) -> None:
    with unfilled():
        weights = family.denoiser.build(family.scales["full"].denoiser).state_dict()
    saved = {name: tuple(weight.shape) for name, weight in family.denoiser.saved(weights).items()}
    assert {name for name in saved if not name.startswith(PREFIX)} == {"cc_projection.weight", "cc_projection.bias"}
    assert recognise(TensorIndex(saved)).family is family
    without = {name: shape for name, shape in saved.items() if name.startswith(PREFIX)}
    assert recognise(TensorIndex(without)).match.variant == "edit"


def test_tokens_with_a_camera_are_projected_and_others_are_taken_as_they_are(family: ModelFamily) -> None:
    network = Zero123Unet(family.scales["small"].denoiser)
    model = ViewDenoiser(network)

    def tokens(given: torch.Tensor) -> Any:
        noise = torch.zeros(1, 4, 8, 8)
        with torch.no_grad():
            return model.extra_conds(noise=noise, device=torch.device("cpu"), cross_attn=given)["c_crossattn"].cond

    with_camera, plain = torch.rand(1, 1, 68), torch.rand(1, 1, 64)
    with torch.no_grad():
        assert torch.equal(tokens(with_camera), network.cc_projection(with_camera))
    assert torch.equal(tokens(plain), plain)
