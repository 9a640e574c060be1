"""SeedVR2's autoencoder: a video in pieces, images, what it remembers, and the memory that it tells."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from darkroom.engine.families.base import NotRecognised
from darkroom.engine.families.seedvr2.vae import SeedVr2Vae, SeedVr2VaeConfig, seedvr2_vae_config
from darkroom.engine.families.seedvr2.vae_files import AUTOENCODER
from darkroom.engine.formats.unfilled import unfilled
from darkroom.engine.layers.frame_memory import FrameMemory

CONFIG = SeedVr2VaeConfig(level_channels=(32, 32, 64, 64), blocks_per_level=1)


@pytest.fixture(scope="module")
def network() -> SeedVr2Vae:
    torch.manual_seed(0)
    return SeedVr2Vae(CONFIG).requires_grad_(False)


def video(frames: int, side: int = 16) -> torch.Tensor:
    return torch.rand(1, 3, frames, side, side, generator=torch.Generator().manual_seed(frames)) * 2 - 1


def latents(frames: int) -> torch.Tensor:
    return torch.randn(1, 16, frames, 2, 3, generator=torch.Generator().manual_seed(frames))


def test_its_configuration_is_read_from_its_tensors(network: SeedVr2Vae) -> None:
    assert seedvr2_vae_config({name: tuple(item.shape) for name, item in network.state_dict().items()}) == CONFIG


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        (replace(CONFIG, latent_channels=12), "12 latent channels"),
        (replace(CONFIG, level_channels=(32, 32, 64)), "expected 4 of multiples of 32"),
    ],
)
def test_networks_of_other_sizes_are_refused(config: SeedVr2VaeConfig, problem: str) -> None:
    with unfilled():
        shapes = {name: tuple(item.shape) for name, item in SeedVr2Vae(config).state_dict().items()}
    with pytest.raises(NotRecognised, match=problem):
        AUTOENCODER.configure(shapes)


@pytest.mark.parametrize(("frames", "latent_frames"), [(1, 1), (5, 2), (9, 3), (21, 6)])
def test_four_frames_behind_the_first_become_one_and_come_back(
    network: SeedVr2Vae, frames: int, latent_frames: int
) -> None:
    encoded = network.encode(video(frames))
    assert encoded.shape == (1, 16, latent_frames, 2, 2)
    assert network.decode(encoded).shape == (1, 3, frames, 16, 16)


def test_frames_do_not_depend_on_later_ones(network: SeedVr2Vae) -> None:
    whole = network.decode(latents(5))
    changed = latents(5)
    changed[:, :, 3:] += 1.0
    other = network.decode(changed)
    torch.testing.assert_close(other[:, :, :9], whole[:, :, :9])
    assert (other[:, :, 9:] - whole[:, :, 9:]).abs().amax(dim=(0, 1, 3, 4)).min() > 0
    longer = torch.cat([video(9), video(4)], dim=2)
    torch.testing.assert_close(network.encode(longer)[:, :, :3], network.encode(video(9)))


def test_a_video_goes_on_where_another_call_ended(network: SeedVr2Vae) -> None:
    whole, memory = latents(5), network.decoding_memory()
    parts = [piece for part in torch.split(whole, 2, dim=2) for piece in network.decoded_pieces(part, memory)]
    assert [piece.shape[2] for piece in parts] == [1, 4, 4, 4, 4]
    assert torch.equal(torch.cat(parts, dim=2), network.decode(whole))


def test_an_image_is_the_first_frame_of_a_video_and_nothing_of_it_is_remembered(network: SeedVr2Vae) -> None:
    torch.testing.assert_close(network.decode(latents(4)[:, :, :1]), network.decode(latents(4))[:, :, :1])
    memory = FrameMemory(is_whole=True)
    network.decoder(latents(1), memory)
    assert all(memory.of(layer) is None for layer in network.modules())


def remembered_values(network: SeedVr2Vae, memory: FrameMemory) -> int:
    frames = (memory.of(layer) for layer in network.modules())
    return sum(item.numel() for item in frames if item is not None)


def test_what_is_remembered_does_not_grow_with_the_video_and_can_be_freed(network: SeedVr2Vae) -> None:
    memory, held = network.decoding_memory(), []
    for _ in network.decoded_pieces(latents(5), memory):
        held.append(remembered_values(network, memory))
    assert held[1] == held[4] > 0
    memory.forget()
    assert remembered_values(network, memory) == 0


def test_the_memory_that_it_tells_is_that_of_a_piece() -> None:
    with unfilled():
        full = SeedVr2Vae(SeedVr2VaeConfig())
    pixels = 720 * 1280
    image, piece, longer = (full.decode_bytes((1, 16, frames, 90, 160)) for frames in (1, 2, 500))
    assert image < piece == longer and 1735 * pixels < image and 10230 * pixels < piece < 12000 * pixels  # as measured
    image, piece, longer = (full.encode_bytes((1, 3, frames, 720, 1280)) for frames in (1, 5, 2001))
    assert image < piece == longer and 1030 * pixels < image and 5710 * pixels < piece < 7000 * pixels


def test_it_tells_how_much_its_layers_remember() -> None:
    full = SeedVr2VaeConfig()
    with torch.device("meta"):
        network, sent = SeedVr2Vae(full), torch.empty(1, 16, 3, 8, 8)
        memory = network.decoding_memory()
        for _ in network.decoded_pieces(sent, memory):
            pass
        held = remembered_values(network, memory) / 64**2
    assert held <= network.remembered_values_per_pixel <= 1.1 * held
