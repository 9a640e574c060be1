"""CogVideoX's autoencoder: numbers of frames, pieces, what is remembered between them, and the memory that it tells."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from darkroom.engine.families.base import NotRecognised
from darkroom.engine.families.cogvideox.vae import (
    CogVideoXVae,
    CogVideoXVaeConfig,
    cogvideox_vae_config,
    num_frames,
    sources,
)
from darkroom.engine.families.cogvideox.vae_files import AUTOENCODER
from darkroom.engine.formats.unfilled import unfilled

CONFIG = CogVideoXVaeConfig(level_channels=(32, 32, 64, 64), blocks_per_level=1)
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def network() -> CogVideoXVae:
    torch.manual_seed(0)
    return CogVideoXVae(CONFIG).requires_grad_(False)


def video(frames: int) -> torch.Tensor:
    return torch.rand(1, 3, frames, 16, 16, generator=torch.Generator().manual_seed(frames)) * 2 - 1


def latents(frames: int) -> torch.Tensor:
    return torch.randn(1, 16, frames, 2, 3, generator=torch.Generator().manual_seed(frames))


def test_its_configuration_is_read_from_its_tensors(network: CogVideoXVae) -> None:
    assert cogvideox_vae_config({name: tuple(item.shape) for name, item in network.state_dict().items()}) == CONFIG


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        (replace(CONFIG, latent_channels=12), "12 latent channels"),
        (replace(CONFIG, level_channels=(32, 32, 64)), "expected 4 of multiples of 32"),
        (replace(CONFIG, level_channels=(32, 32, 64, 4096)), "up to 2048 channels"),
        (replace(CONFIG, blocks_per_level=17), "up to 16"),
    ],
)
def test_networks_of_other_sizes_are_refused(config: CogVideoXVaeConfig, problem: str) -> None:
    with unfilled():
        shapes = {name: tuple(item.shape) for name, item in CogVideoXVae(config).state_dict().items()}
    with pytest.raises(NotRecognised, match=problem):
        AUTOENCODER.configure(shapes)


@pytest.mark.parametrize(("latent_frames", "frames"), [(1, 1), (2, 8), (3, 9), (4, 16), (5, 17)])
def test_the_first_frame_of_an_odd_number_stays_one(network: CogVideoXVae, latent_frames: int, frames: int) -> None:
    assert num_frames(latent_frames) == network.frames_at_once(latent_frames) == frames
    assert network.decode(latents(latent_frames)).shape == (1, 3, frames, 16, 24)


def test_frames_are_repeated_behind_the_first_of_an_odd_number() -> None:
    assert sources(3, 2, CPU).tolist() == [0, 1, 1, 2, 2]
    assert sources(2, 4, CPU).tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert sources(1, 4, CPU).tolist() == [0]


@pytest.mark.parametrize(
    ("frames", "pieces", "latent_frames"),
    [(1, [1], 1), (7, [7], 2), (8, [8], 2), (9, [1, 8], 3), (20, [4, 8, 8], 5)],
)
def test_a_video_is_encoded_in_pieces_of_which_the_first_is_what_is_left_over(
    network: CogVideoXVae, frames: int, pieces: list[int], latent_frames: int
) -> None:
    given = video(frames)
    assert network.encoded_pieces(frames) == pieces
    encoded = network.encode(given)
    assert encoded.shape == (1, 16, latent_frames, 2, 2)
    assert torch.equal(network.encoded_from_pieces(torch.split(given, pieces, dim=2)), encoded)


def test_a_piece_depends_on_the_last_frames_of_the_one_before(network: CogVideoXVae) -> None:
    first, second = video(12), video(12)
    second[:, :, :2] += 0.5
    changed = (network.encode(first) - network.encode(second)).abs().amax(dim=(0, 1, 3, 4))
    assert changed[0] > 1e-3 and changed[1] > 1e-6


def test_a_first_piece_of_one_frame_is_not_remembered(network: CogVideoXVae) -> None:
    first, second = video(9), video(9)
    second[:, :, :1] += 0.5
    assert torch.equal(network.encode(first)[:, :, 1:], network.encode(second)[:, :, 1:])


def test_pieces_of_four_frames_are_the_video(network: CogVideoXVae) -> None:
    given = latents(5)
    pieces = [*network.decoded_pieces(given)]
    assert [piece.shape[2] for piece in pieces] == [4, 4, 4, 4, 1]
    assert torch.equal(torch.cat(pieces, dim=2), network.decode(given))


def test_memory_grows_with_the_frames_of_a_long_video_alone() -> None:
    with unfilled():
        vae = CogVideoXVae(CogVideoXVaeConfig())
    one, short, long, longer = (vae.decode_bytes((1, 16, frames, 48, 84)) for frames in (1, 2, 49, 98))
    frame_px = 48 * 84 * 64
    assert one == frame_px * 1490
    assert one < short < long < longer
    assert short == frame_px * (8520 + 8 * 8)
    assert longer / long == pytest.approx(2, rel=0.02)
    most = vae.encode_bytes((1, 3, 9, 384, 672))
    assert vae.encode_bytes((1, 3, 8, 384, 672)) < most == vae.encode_bytes((1, 3, 500, 384, 672))
