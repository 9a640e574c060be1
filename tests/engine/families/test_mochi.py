"""Mochi: what a file's tensors say of its networks, its VAE in pieces and without encoder, sizes that are refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from darkroom.engine.families import registry
from darkroom.engine.families.mochi.transformer import mochi_config, places
from darkroom.engine.families.mochi.vae import MochiVae, MochiVaeConfig, mochi_vae_config
from darkroom.engine.formats.unfilled import unfilled

FAMILY = registry.family_named("mochi")
SMALL: MochiVaeConfig = FAMILY.scales["small"].vae


def small_vae() -> MochiVae:
    torch.manual_seed(0)
    return MochiVae(SMALL).requires_grad_(False).eval()


@pytest.mark.parametrize("scale", ["full", "small"])
def test_shapes_tell_the_sizes_of_both_networks(scale: str) -> None:
    configs = FAMILY.scales[scale]
    with unfilled():
        networks = FAMILY.denoiser.build(configs.denoiser), MochiVae(configs.vae)
    denoiser, vae = ({name: tuple(part.shape) for name, part in item.state_dict().items()} for item in networks)
    assert mochi_config(denoiser) == configs.denoiser
    assert mochi_vae_config(vae) == configs.vae
    decoder = {name: shape for name, shape in vae.items() if name.startswith("decoder.")}
    assert mochi_vae_config(decoder) == replace(configs.vae, encoder_channels=(), has_encoder=False)


def test_a_video_decoded_in_pieces_is_the_one_decoded_as_a_whole() -> None:
    vae = small_vae()
    latents = torch.randn(1, 12, 4, 2, 3)
    pieces = [*vae.decoded_pieces(latents)]
    assert [piece.shape[2] for piece in pieces] == [1, 6, 6, 6]
    torch.testing.assert_close(torch.cat(pieces, dim=2), vae.decode(latents), rtol=1e-4, atol=1e-4)


def test_a_first_frame_is_the_same_as_an_image() -> None:
    vae = small_vae()
    latents = torch.randn(1, 12, 3, 2, 2)
    torch.testing.assert_close(vae.decode(latents)[:, :, :1], vae.decode(latents[:, :, :1]), rtol=1e-4, atol=1e-4)
    assert vae.encode(torch.rand(1, 3, 13, 16, 16)).shape == (1, 12, 3, 2, 2)


def test_a_vae_without_encoder_says_so_when_images_are_encoded() -> None:
    vae = MochiVae(replace(SMALL, encoder_channels=(), has_encoder=False))
    assert vae.encode_bytes_per_pixel == 0
    with pytest.raises(ValueError, match="has no encoder"):
        vae.encode(torch.rand(1, 3, 1, 16, 16))


def test_sides_that_are_no_whole_patches_are_refused_by_name() -> None:
    network = FAMILY.denoiser.build(FAMILY.scales["small"].denoiser)
    with pytest.raises(ValueError, match="multiples of 2 cells; got 5x4 cells, expected 4x4"):
        network(torch.zeros(1, 12, 1, 4, 5), torch.ones(1), torch.zeros(1, 3, 128))


def test_places_are_centred_and_stretched_to_one_area() -> None:
    where = places(2, 3, 4, torch.device("cpu")).view(2, 3, 4, 3)
    torch.testing.assert_close(where[..., 1:].mean(dim=(0, 1, 2)), torch.zeros(2))
    assert where[1, 0, 0, 0] == 1.0
    stretch = (36864 / 12) ** 0.5
    torch.testing.assert_close(where[0, 1, 0, 1] - where[0, 0, 0, 1], torch.tensor(stretch))
