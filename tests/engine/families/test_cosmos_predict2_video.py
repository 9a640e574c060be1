"""Cosmos-Predict2 that continues images: its variant, its further channel, and the latents it is given."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from darkroom.engine.families import registry
from darkroom.engine.families.base import TensorIndex
from darkroom.engine.families.cosmos_predict2.denoiser import CosmosPredict2VideoDenoiser
from darkroom.engine.formats.unfilled import unfilled
from darkroom.engine.models.saved_layout import denoiser_tensors
from darkroom.engine.nodes.library.latent.given_frames import given_latent

FAMILY = registry.family_named("cosmos_predict2")


class FramesOf:
    """A VAE whose latent frames are the means of every fourth frame, in place of a network."""

    def encode(self, frames: torch.Tensor) -> torch.Tensor:
        return frames[::4].mean(dim=(1, 2, 3)).view(1, 1, -1, 1, 1)


@pytest.mark.parametrize(("channels", "variant"), [(16, ""), (17, "video"), (18, None)])
def test_channels_tell_the_variant(channels: int, variant: str | None) -> None:
    config = replace(FAMILY.scales["small"].denoiser, in_channels=channels)
    with unfilled():
        tensors = denoiser_tensors(FAMILY, FAMILY.denoiser.build(config).state_dict())
    match = FAMILY.detect(TensorIndex({name: tuple(tensor.shape) for name, tensor in tensors.items()}))
    assert (None if match is None else match.variant) == variant


def test_the_further_channel_is_1_where_cells_are_given() -> None:
    denoiser: Any = CosmosPredict2VideoDenoiser(torch.nn.Identity(), concat_keys=("mask_inverted",))
    noise = torch.zeros(2, 16, 3, 4, 4)
    mask = torch.ones(1, 16, 3, 4, 4)
    mask[:, :, 0] = 0.2
    given = denoiser.concat_cond(noise=noise, device=noise.device, denoise_mask=mask)
    assert given.shape == (2, 1, 3, 4, 4) and given[:, :, 0].min() == 1.0 and given[:, :, 1:].max() == 0.0
    assert torch.equal(denoiser.concat_cond(noise=noise, device=noise.device), noise[:, :1])


def test_grey_frames_follow_the_images_that_are_encoded() -> None:
    vae: Any = FramesOf()
    white = torch.ones(1, 8, 8, 3)
    assert given_latent(vae, white, 8, 8, 93, further=1).flatten().tolist() == [1.0]
    ten = given_latent(vae, white.repeat(10, 1, 1, 1), 8, 8, 93, further=0)
    assert ten.flatten().tolist() == [1.0, 1.0]  # one for each eight frames, not one for each four
    assert given_latent(vae, white.repeat(20, 1, 1, 1), 8, 8, 5, further=1).shape[2] == 1
