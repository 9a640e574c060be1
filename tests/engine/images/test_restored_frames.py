"""Frames filled up for a network that restores them, and cut back to the originals."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from darkroom.engine.images.restored_frames import RestoredFrames, padded_video
from darkroom.engine.media.frame_stream import FrameStream

CPU = torch.device("cpu")


def images(frames: int, height: int = 20, width: int = 33, channels: int = 3) -> torch.Tensor:
    return torch.rand(frames, height, width, channels, generator=torch.Generator().manual_seed(frames))


def padded(given: torch.Tensor) -> torch.Tensor:
    return padded_video(given, lambda num_bytes: None)


@pytest.mark.parametrize(("frames", "length"), [(1, 1), (2, 5), (4, 5), (5, 5), (6, 9), (9, 9)])
def test_a_video_is_filled_up_to_whole_latent_frames_with_its_last_one(frames: int, length: int) -> None:
    video = padded(images(frames))
    assert video.shape == (1, length, 32, 48, 3)
    assert torch.equal(video[0, :frames, :20, :33], images(frames))
    assert all(torch.equal(video[0, index], video[0, frames - 1]) for index in range(frames, length))
    assert video[:, :, 20:].eq(0).all() and video[:, :, :, 33:].eq(0).all()


def test_alpha_is_left_out_and_values_are_clamped() -> None:
    assert torch.equal(padded(images(1, 16, 16, 4)), images(1, 16, 16, 4)[None, ..., :3])
    assert torch.equal(padded(images(1, 16, 16) * 4 - 2)[0], (images(1, 16, 16) * 4 - 2).clamp(0, 1))


def test_several_videos_stay_several() -> None:
    videos = images(6).view(2, 3, 20, 33, 3)
    assert torch.equal(padded(videos)[1], padded(videos[1])[0])


def test_the_size_is_told_before_anything_is_made() -> None:
    def refuse(num_bytes: int) -> None:
        raise ValueError(f"{num_bytes}")

    with pytest.raises(ValueError, match=str(5 * 32 * 48 * 3 * 4)):
        padded_video(images(2), refuse)


@pytest.mark.parametrize("method", ["none", "lab", "wavelet", "adain"])
def test_restored_frames_have_the_number_and_the_even_size_of_the_originals(method: str) -> None:
    frames = RestoredFrames(images(5, 32, 48), images(3), method)
    made = torch.stack([*frames.restored(CPU)])
    assert tuple(made.shape) == frames.shape
    assert frames.shape == (3, 20, 32, 3) and len(frames) == 3
    if method == "none":
        assert torch.equal(made, images(5, 32, 48)[:3, :20, :32])


def test_a_frame_is_corrected_by_its_own_original() -> None:
    originals = images(2, 32, 32) * torch.tensor([0.2, 1.0])[:, None, None, None]
    first, second = RestoredFrames(images(5, 32, 32), originals, "adain").restored(CPU)
    assert first.mean() < 0.15 < 0.4 < second.mean()


def test_originals_of_another_size_are_scaled_to_that_of_the_result() -> None:
    flat = torch.full((1, 64, 64, 3), 0.25)
    (made,) = RestoredFrames(torch.full((1, 32, 32, 3), 0.75), flat, "wavelet").restored(CPU)
    assert made.shape == (32, 32, 3)
    torch.testing.assert_close(made, torch.full((32, 32, 3), 0.25))


def test_alpha_of_the_originals_comes_back() -> None:
    originals = images(3, channels=4)
    frames = RestoredFrames(images(5, 32, 48), originals, "none")
    assert frames.shape == (3, 20, 32, 4)
    assert torch.equal(torch.stack([*frames.restored(CPU)])[..., 3], originals[:, :20, :32, 3])


def test_frames_of_several_videos_in_one_row_are_told_apart() -> None:
    originals = images(4).view(2, 2, 20, 33, 3)
    frames = RestoredFrames(images(10, 32, 48), originals, "none")
    assert frames.shape == (4, 20, 32, 3)
    expected = images(10, 32, 48)[[0, 1, 5, 6], :20, :32]
    assert torch.equal(torch.stack([*frames.restored(CPU)]), expected)
    videos = RestoredFrames(images(10, 32, 48).view(2, 5, 32, 48, 3), originals, "none")
    assert videos.shape == (2, 2, 20, 32, 3) and torch.equal(torch.stack([*videos.restored(CPU)]), expected)


def test_other_channels_than_the_originals_are_refused() -> None:
    with pytest.raises(ValueError, match="images: other channels than the originals; got 1, expected 3"):
        RestoredFrames(images(1, channels=1), images(1), "lab")


def test_frames_of_a_stream_are_taken_as_they_are_needed_and_no_further() -> None:
    taken = []

    def decode() -> Iterator[torch.Tensor]:
        for index in range(9):
            taken.append(index)
            yield images(9, 32, 48)[index : index + 1]

    stream = FrameStream((9, 32, 48, 3), decode)
    frames = RestoredFrames(stream, images(3), "none").restored(CPU)
    next(frames)
    assert taken == [0]
    assert len([*frames]) == 2 and len(taken) <= 5
