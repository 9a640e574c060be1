"""The causal autoencoder of videos: what a frame sees, the number of frames, and images as videos of one frame."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from darkroom.engine.families.wan.vae import CausalConv3d, WanVae, WanVaeConfig, wan_vae_config
from darkroom.engine.layers.frame_memory import FrameMemory

CONFIG = WanVaeConfig(base_channels=8, latent_channels=4)


@pytest.fixture(scope="module")
def network() -> WanVae:
    torch.manual_seed(0)
    made = WanVae(CONFIG).requires_grad_(False)
    for name, weight in made.named_parameters():
        if name.endswith(".gamma"):
            weight.fill_(1.0)
    return made


def video(num_frames: int) -> torch.Tensor:
    return torch.rand(1, 3, num_frames, 16, 24, generator=torch.Generator().manual_seed(1)) * 2 - 1


def test_configuration_is_read_from_the_shapes(network: WanVae) -> None:
    assert wan_vae_config({name: tuple(item.shape) for name, item in network.state_dict().items()}) == CONFIG


@pytest.mark.parametrize(("frames", "latents", "decoded"), [(1, 1, 1), (4, 1, 1), (5, 2, 5), (9, 3, 9)])
def test_four_frames_behind_the_first_become_one(network: WanVae, frames: int, latents: int, decoded: int) -> None:
    latent = network.encode(video(frames))
    assert latent.shape == (1, 4, latents, 2, 3)
    assert network.decode(latent).shape == (1, 3, decoded, 16, 24)


def test_a_frame_does_not_see_later_ones(network: WanVae) -> None:
    whole, start = network.encode(video(9)), network.encode(video(9)[:, :, :5])
    torch.testing.assert_close(whole[:, :, :2], start)
    torch.testing.assert_close(network.decode(whole)[:, :, :5], network.decode(start))


def test_a_later_frame_sees_earlier_ones(network: WanVae) -> None:
    changed = video(9)
    changed[:, :, 1] += 1.0
    assert not torch.allclose(network.encode(changed)[:, :, 2], network.encode(video(9))[:, :, 2], atol=1e-3)


def test_videos_of_a_batch_do_not_see_each_other(network: WanVae) -> None:
    both = torch.cat([video(5), -video(5)])
    torch.testing.assert_close(network.encode(both)[:1], network.encode(video(5)), rtol=1e-4, atol=1e-5)


def test_a_convolution_in_pieces_is_one_of_the_whole() -> None:
    torch.manual_seed(2)
    layer = CausalConv3d(3, 5, 3).requires_grad_(False)
    x = torch.randn(1, 3, 6, 4, 4)
    memory = FrameMemory()
    pieces = [layer(piece, memory) for piece in torch.split(x, [1, 2, 3], dim=2)]
    padded = torch.nn.functional.pad(x, (1, 1, 1, 1, 2, 0))
    expected = torch.nn.functional.conv3d(padded, layer.weight, layer.bias)
    torch.testing.assert_close(torch.cat(pieces, dim=2), expected)


def test_images_may_have_opacity() -> None:
    config = replace(CONFIG, image_channels=4)
    network = WanVae(config).requires_grad_(False)
    assert wan_vae_config({name: tuple(item.shape) for name, item in network.state_dict().items()}) == config
    assert network.output_channels == 4
    latent = network.encode(torch.rand(1, 4, 1, 16, 24))
    assert network.decode(latent).shape == (1, 4, 1, 16, 24)
