"""Nodes that take frames of a video: which ones, and the audio of their time."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import torch

from darkroom.engine.media.opened import BadMedia
from darkroom.engine.media.selected_frames import SelectedFrames, selected
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
    assert source.get_frame_count() == 10
    part = SelectedFrames(source, range(4, 7))
    assert part.get_dimensions() == (32, 32)
    part.save_to(str(tmp_path / "b.mp4"))
    saved = VideoFromFile(tmp_path / "b.mp4").get_components()
    assert saved.images.shape[0] == 3 and saved.frame_rate == 5 and saved.audio is not None
    assert [round(float(value) * 16) for value in saved.images[:, 16, 16].mean(-1)] == [4, 5, 6]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "a.mp4"
    video().save_to(str(path))
    return path


def test_frames_of_a_file_take_the_memory_of_those_frames(tmp_path: Path) -> None:
    """Room for seven of ten frames of 128x128 px."""
    large = torch.nn.functional.interpolate(video().get_components().images.movedim(-1, 1), scale_factor=4)
    path = tmp_path / "large.mp4"
    VideoFromComponents(VideoComponents(large.movedim(1, -1), Fraction(5))).save_to(str(path))
    source = VideoFromFile(path, lambda: 7 * 128 * 128 * 28)
    with pytest.raises(BadMedia, match="too large"):
        source.get_components()
    spread = video_frame_sample(context, video=source, num_frames=4, strategy="uniform", seed=0)
    assert frames_of_file(spread) == [0, 3, 6, 9]
    assert frames_of_file(video_frame_sample(context, video=source, num_frames=3, strategy="tail", seed=0)) == [7, 8, 9]


def test_neighbours_in_a_file_are_a_part_by_time_that_can_be_cropped_again(file: Path) -> None:
    part = video_temporal_crop(context, video=VideoFromFile(file), start_frame=3, length=5)
    assert isinstance(part, VideoFromFile)
    assert part.get_frame_count() == 5
    assert frames_of_file(part) == [3, 4, 5, 6, 7]
    audio = part.get_components().audio
    assert audio is not None and audio["waveform"].shape[-1] == 5 * 1600
    inner = video_temporal_crop(context, video=part, start_frame=3, length=9)
    assert frames_of_file(inner) == [6, 7]
    assert frames_of_file(video_frame_sample(context, video=part, num_frames=2, strategy="uniform", seed=0)) == [3, 7]


def test_frames_at_unknown_times_are_taken_by_their_indices(tmp_path: Path) -> None:
    """Frames of AVI are as far apart as its clock ticks: a time between two of them has no place in it."""
    path = tmp_path / "a.avi"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mjpeg", rate=5)
        stream.width, stream.height, stream.pix_fmt = 32, 32, "yuvj420p"
        for value in range(10):
            frame = av.VideoFrame.from_ndarray(np.full((32, 32, 3), value * 16, np.uint8), format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    made = selected(VideoFromFile(path), range(4, 7))
    assert isinstance(made, SelectedFrames)
    assert frames_of_file(made) == [4, 5, 6]


def test_a_file_that_declares_more_frames_than_it_has_bytes_is_counted(tmp_path: Path) -> None:
    """The number of frames in AVI's header is no more than a word of it."""
    path = tmp_path / "a.avi"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=8)
        stream.width, stream.height, stream.pix_fmt = 32, 32, "yuv420p"
        for value in range(10):
            pixels = np.full((32, 32, 3), value * 20, dtype=np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode(None))
    content = bytearray(path.read_bytes())
    length = content.index(b"strh") + 8 + 32
    content[length : length + 4] = (0xFFFFFFFF).to_bytes(4, "little")
    path.write_bytes(content)
    assert VideoFromFile(path).get_frame_count() == 10
    made = video_frame_sample(context, video=VideoFromFile(path), num_frames=3, strategy="random", seed=1)
    assert len(frames_of_file(made)) == 3


def frames_of_file(made: Any) -> list[int]:
    return [round(float(value) * 16) for value in made.get_components().images[:, 16, 16].mean(-1)]
