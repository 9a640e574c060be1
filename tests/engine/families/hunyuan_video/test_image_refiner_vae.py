"""Tests of the autoencoder of HunyuanImage's refiner."""

from __future__ import annotations

import pytest
import torch

from darkroom.engine.families.hunyuan_video.image_refiner_vae import (
    HunyuanImageRefinerVae,
    HunyuanImageRefinerVaeConfig,
)


def autoencoder() -> HunyuanImageRefinerVae:
    torch.manual_seed(0)
    config = HunyuanImageRefinerVaeConfig((8, 8, 8, 16, 16), frame_channels=4, blocks_per_level=1)
    made = HunyuanImageRefinerVae(config)
    for weight in made.parameters():
        torch.nn.init.normal_(weight, std=0.1)
    return made


@torch.no_grad()
@pytest.mark.parametrize(("frames", "latent_frames"), [(1, 1), (9, 2)])
def test_a_latent_frame_is_a_pair_of_frames(frames: int, latent_frames: int) -> None:
    made = autoencoder()
    latents = made.encode(torch.rand(1, 3, frames, 32, 16))
    assert latents.shape == (1, 8, latent_frames, 2, 1)
    assert made.decode(latents).shape == (1, 3, frames, 32, 16)


@torch.no_grad()
def test_frames_that_make_no_pairs_are_refused() -> None:
    with pytest.raises(ValueError, match="pixels: their latent frames do not make pairs; got 5 frames"):
        autoencoder().encode(torch.rand(1, 3, 5, 16, 16))
