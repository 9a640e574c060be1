"""Numbers of frames and sizes that MiniMax H3 works on."""

from __future__ import annotations

import pytest

from darkroom.engine.families.minimax_h3.sizes import (
    audio_frames,
    canvas_size,
    frames_above,
    frames_below,
    frames_of,
    latent_frames,
    reference_size,
)


@pytest.mark.parametrize(("length", "frames"), [(1, 5), (5, 5), (6, 22), (22, 22), (23, 39), (124, 124), (125, 141)])
def test_a_length_is_raised_to_the_next_that_a_video_may_have(length: int, frames: int) -> None:
    assert frames_above(length) == frames


@pytest.mark.parametrize(("length", "frames"), [(5, 5), (21, 5), (22, 22), (38, 22), (124, 124), (140, 124)])
def test_given_frames_are_cut_to_as_many_as_a_video_may_have(length: int, frames: int) -> None:
    assert frames_below(length) == frames


@pytest.mark.parametrize("frames", [5, 22, 39, 124, 362])
def test_latent_frames_stand_for_the_frames_of_a_video(frames: int) -> None:
    assert frames_of(latent_frames(frames)) == frames


def test_a_second_of_audio_has_forty_latent_frames() -> None:
    assert [audio_frames(frames) for frames in (5, 22, 124)] == [8, 37, 207]


def test_reference_images_are_made_smaller_and_never_larger() -> None:
    assert reference_size(1000, 500, 64 * 64) == (96, 32)
    assert reference_size(50, 40, 640 * 640) == (64, 32)  # the nearest multiples of 32
    assert reference_size(5000, 4000, None) == (2560, 2048)


def test_reference_videos_have_a_short_side_of_768_and_a_limited_area() -> None:
    assert canvas_size(1920, 1080) == (1344, 768)
    assert canvas_size(1080, 1920) == (768, 1344)
    assert canvas_size(4000, 1000) == (2016, 512)
    assert canvas_size(64, 48) == (64, 64)
