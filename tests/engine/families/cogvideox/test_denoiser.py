"""The inputs of CogVideoX beside the latent: given videos, cut and filled up to the latent's size, and `ofs`."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from darkroom.engine.families.cogvideox.denoiser import CogVideoXDenoiser

CPU = torch.device("cpu")
SCALE = 0.7


def denoiser(in_channels: int = 48, offset_dim: int = 0) -> CogVideoXDenoiser:
    network: Any = torch.nn.Identity()
    network.config = SimpleNamespace(in_channels=in_channels, offset_dim=offset_dim, text_dim=8)
    made: Any = CogVideoXDenoiser(network)
    made.latent_format = SimpleNamespace(process_in=lambda latent: latent * SCALE)
    found: CogVideoXDenoiser = made
    return found


def concat(given: torch.Tensor | None, in_channels: int = 48, noise: torch.Tensor | None = None) -> Any:
    noise = torch.zeros(2, 16, 3, 4, 6) if noise is None else noise
    return denoiser(in_channels).concat_cond(noise=noise, device=CPU, concat_latent_image=given)


def test_a_network_of_text_alone_reads_no_more() -> None:
    assert concat(torch.ones(1, 32, 3, 4, 6), in_channels=16) is None


def test_without_a_video_it_reads_zeros() -> None:
    assert torch.equal(concat(None), torch.zeros(2, 32, 3, 4, 6))


def test_a_video_is_scaled_for_every_item_and_stays_as_it_was() -> None:
    given = torch.randn(1, 32, 3, 4, 6)
    kept = given.clone()
    assert torch.equal(concat(given), (given * SCALE).expand(2, -1, -1, -1, -1))
    assert torch.equal(given, kept)


@pytest.mark.parametrize("frames", [1, 5])
def test_a_video_of_other_frames_is_filled_up_with_zeros_or_cut(frames: int) -> None:
    read = concat(torch.ones(1, 32, frames, 4, 6))
    assert read.shape == (2, 32, 3, 4, 6)
    assert read.amax(dim=(0, 1, 3, 4)).tolist() == pytest.approx([SCALE if at < frames else 0.0 for at in range(3)])


def test_a_video_of_another_size_is_cut_around_its_middle() -> None:
    given = torch.zeros(1, 32, 3, 8, 4)
    given[:, :, :, 3:5] = 1.0
    read = concat(given, noise=torch.zeros(1, 16, 3, 2, 4))
    assert torch.allclose(read, torch.full((1, 32, 3, 2, 4), SCALE))


def test_missing_channels_are_repeated_and_others_left_out() -> None:
    given = torch.arange(16.0).view(1, 16, 1, 1, 1).expand(1, 16, 3, 4, 6)
    assert concat(given)[0, :, 0, 0, 0].tolist() == pytest.approx([SCALE * number for number in [*range(16)] * 2])
    assert concat(given, in_channels=24)[0, :, 0, 0, 0].tolist() == pytest.approx([SCALE * item for item in range(8)])


def test_a_latent_of_images_is_refused() -> None:
    with pytest.raises(ValueError, match=r"concat_latent_image: it is no latent of videos; got shape \[1, 32, 4, 6\]"):
        concat(torch.zeros(1, 32, 4, 6))


@pytest.mark.parametrize(("given", "expected"), [(None, 2.0), (torch.tensor([5.0]), 5.0)])
def test_ofs_is_two_unless_it_is_given(given: torch.Tensor | None, expected: float) -> None:
    noise = torch.zeros(1, 16, 1, 2, 2)
    inputs = denoiser(16, offset_dim=32).extra_conds(noise=noise, device=CPU, ofs=given)
    assert inputs["ofs"].cond.tolist() == [expected]
    assert "ofs" not in denoiser(16).extra_conds(noise=noise, device=CPU)
