"""Tests of the autoencoder of HunyuanImage's refiner and HunyuanVideo 1.5."""

from __future__ import annotations

import pytest
import torch

from darkroom.engine.families.hunyuan_video.image_refiner_vae import (
    HunyuanImageRefinerVae,
    HunyuanImageRefinerVaeConfig,
)


def autoencoder() -> HunyuanImageRefinerVae:
    torch.manual_seed(0)
    config = HunyuanImageRefinerVaeConfig((8, 8, 8, 16, 16), latent_channels=4, blocks_per_level=1)
    made = HunyuanImageRefinerVae(config)
    for weight in made.parameters():
        torch.nn.init.normal_(weight, std=0.1)
    return made


@torch.no_grad()
@pytest.mark.parametrize(("frames", "latent_frames", "decoded"), [(1, 1, 1), (4, 1, 1), (9, 3, 9), (23, 6, 21)])
def test_frames_behind_the_first_are_four_to_a_latent_frame(frames: int, latent_frames: int, decoded: int) -> None:
    made = autoencoder()
    latents = made.encode(torch.rand(1, 3, frames, 32, 16))
    assert latents.shape == (1, 4, latent_frames, 2, 1)
    assert made.decode(latents).shape == (1, 3, decoded, 32, 16)


@torch.no_grad()
def test_frames_of_a_video_do_not_depend_on_the_piece_that_they_are_in() -> None:
    made = autoencoder()
    made.decoder.mid.attn_1.proj_out.weight.zero_()  # attention is over all frames
    latents = torch.randn(1, 4, 5, 2, 1)
    whole = made.decode(latents)
    assert [piece.shape[2] for piece in made.decoded_pieces(latents)] == [5, 8, 4]
    torch.testing.assert_close(made.decode(latents[:, :, :3]), whole[:, :, :9])


def test_memory_of_decoding_grows_with_frames_by_the_middle_alone() -> None:
    made = autoencoder()
    image, short, long = (made.decode_bytes((1, 4, frames, 8, 8)) for frames in (1, 2, 102))
    assert short > 3 * image
    assert long - short < short
    assert made.encode_bytes((1, 3, 9, 64, 64)) > made.encode_bytes((1, 3, 1, 64, 64))
