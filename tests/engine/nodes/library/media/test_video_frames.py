"""Nodes that take frames of a video: which ones, and the audio of their time."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch

from darkroom.engine.media.selected_frames import SelectedFrames, num_frames_of
from darkroom.engine.media.video import VideoComponents, VideoFromComponents, VideoFromFile
from darkroom.engine.nodes.library.media.video_frames import (
    sampled_indices,
    video_frame_sample,
    video_random_temporal_crop,
    video_temporal_crop,
)

context: Any = None


def video(num_frames: int = 10, *, with_audio: bool = True) -> VideoFromComponents:
    """Return a video at 5 frames a second whose frame n is n / 16, with 1600 samples a frame."""
    images = (torch.arange(num_frames) / 16)[:, None, None, None].expand(-1, 32, 32, 3)
    audio: Any = {"waveform": torch.arange(num_frames * 1600)[None, None] / 16000, "sample_rate": 8000}
    return VideoFromComponents(VideoComponents(images, Fraction(5), audio if with_audio else None))


def frames_of(made: Any) -> list[int]:
    return [round(float(value) * 16) for value in made.get_components().images[:, 0, 0, 0]]


def test_strategies_choose_frames_in_order() -> None:
    assert list(sampled_indices(10, 3, "head", 0)) == [0, 1, 2]
    assert list(sampled_indices(10, 3, "tail", 0)) == [7, 8, 9]
    assert sampled_indices(10, 4, "uniform", 0) == [0, 3, 6, 9]
    assert sampled_indices(10, 1, "uniform", 0) == [5]
    assert sampled_indices(3, 99, "uniform", 0) == [0, 1, 2]
    chosen = sampled_indices(1000, 5, "random", 3)
    assert chosen == sorted(set(chosen)) == sampled_indices(1000, 5, "random", 3)
    assert chosen != sampled_indices(1000, 5, "random", 4)


def test_neighbours_keep_their_audio_and_others_lose_it() -> None:
    tail = video_frame_sample(context, video=video(), num_frames=2, strategy="tail", seed=0).get_components()
    assert tail.audio is not None and tail.audio["waveform"][0, 0, [0, -1]].mul(16000).round().tolist() == [
        12800,
        15999,
    ]
    spread = video_frame_sample(context, video=video(), num_frames=4, strategy="uniform", seed=0)
    assert frames_of(spread) == [0, 3, 6, 9] and spread.get_components().audio is None


@pytest.mark.parametrize(("start", "length", "expected"), [(2, 3, [2, 3, 4]), (8, 5, [8, 9]), (99, 5, [9])])
def test_a_crop_ends_with_the_video(start: int, length: int, expected: list[int]) -> None:
    assert frames_of(video_temporal_crop(context, video=video(), start_frame=start, length=length)) == expected


def test_a_random_crop_is_one_of_the_possible_ones_by_seed() -> None:
    made = frames_of(video_random_temporal_crop(context, video=video(with_audio=False), length=4, seed=7))
    assert made == list(range(made[0], made[0] + 4))
    assert frames_of(video_random_temporal_crop(context, video=video(), length=99, seed=7)) == list(range(10))


def test_frames_of_a_file_are_counted_and_saved(tmp_path: Path) -> None:
    path = tmp_path / "a.mp4"
    video().save_to(str(path))
    source = VideoFromFile(path)
    assert num_frames_of(source) == 10
    part = SelectedFrames(source, range(4, 7))
    assert part.get_dimensions() == (32, 32)
    part.save_to(str(tmp_path / "b.mp4"))
    saved = VideoFromFile(tmp_path / "b.mp4").get_components()
    assert saved.images.shape[0] == 3 and saved.frame_rate == 5 and saved.audio is not None
    assert [round(float(value) * 16) for value in saved.images[:, 16, 16].mean(-1)] == [4, 5, 6]
