"""The node that computes frames between those of a video: what it returns, refuses and holds."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from darkroom.engine.media.frame_stream import FrameStream
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.library.media.frame_interpolation import (
    frame_interpolate,
    frame_interpolation_model_loader,
)
from tests.engine.nodes.small_store import node_context, small_store
from tests.parity.models import read_layouts, write_model

NAMES = ("rife_small", "film_small")


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> NodeContext:
    folder = tmp_path_factory.mktemp("frames")
    for item in read_layouts():
        if item.name in NAMES:
            write_model(item, folder)
    return node_context(small_store(folder))


@pytest.fixture(scope="module", params=NAMES)
def model(request: pytest.FixtureRequest, context: NodeContext) -> Any:
    return frame_interpolation_model_loader(context, model_name=f"{request.param}.safetensors")


@pytest.fixture(scope="module")
def rife(context: NodeContext) -> Any:
    return frame_interpolation_model_loader(context, model_name="rife_small.safetensors")


def video(num_frames: int, height: int = 64, width: int = 80) -> torch.Tensor:
    return torch.rand(num_frames, height, width, 3, generator=torch.Generator().manual_seed(0))


def test_frames_of_the_video_stay_and_others_come_between(context: NodeContext, model: Any) -> None:
    frames = video(3)
    made = frame_interpolate(context, interp_model=model, images=frames, multiplier=4)
    assert made.shape == (9, 64, 80, 3)
    torch.testing.assert_close(made[::4], frames)
    assert made.min() >= 0 and made.max() <= 1
    assert not torch.equal(made[1], made[2])


def test_a_pair_has_the_same_frames_between_in_any_video(context: NodeContext, model: Any) -> None:
    frames = video(3)
    whole = frame_interpolate(context, interp_model=model, images=frames, multiplier=2)
    alone = frame_interpolate(context, interp_model=model, images=frames[1:], multiplier=2)
    torch.testing.assert_close(whole[2:], alone)


def test_one_frame_is_returned_as_it_is(context: NodeContext, rife: Any) -> None:
    frames = video(1, 8, 8)
    assert frame_interpolate(context, interp_model=rife, images=frames, multiplier=2) is frames


def test_no_more_frames_are_decoded_than_are_taken(context: NodeContext, rife: Any) -> None:
    frames, taken = video(50), []

    def decode() -> Iterator[torch.Tensor]:
        for index in range(50):
            taken.append(index)
            yield frames[index : index + 1]

    streaming = dataclasses.replace(context, output_is_streamed=lambda: True)
    made = frame_interpolate(streaming, interp_model=rife, images=FrameStream((50, 64, 80, 3), decode), multiplier=2)
    assert isinstance(made, FrameStream) and made.shape == (99, 64, 80, 3)
    pieces = made.pieces()
    torch.testing.assert_close(next(pieces)[0], frames[0])
    next(pieces)
    assert taken == [0, 1]


@pytest.mark.parametrize(
    ("shape", "reason"),
    [((2, 40, 100, 3), None), ((2, 20, 100, 3), "frames too small"), ((2, 64, 64, 4), "got 4 channels")],
)
def test_frames_are_refused_that_cannot_be_padded(
    context: NodeContext, rife: Any, shape: tuple[int, ...], reason: str | None
) -> None:
    if reason is None:
        assert len(frame_interpolate(context, interp_model=rife, images=torch.zeros(shape), multiplier=2)) == 3
        return
    with pytest.raises(ValueError, match=reason):
        frame_interpolate(context, interp_model=rife, images=torch.zeros(shape), multiplier=2)


def test_film_refuses_frames_smaller_than_its_pyramid(context: NodeContext) -> None:
    film = frame_interpolation_model_loader(context, model_name="film_small.safetensors")
    with pytest.raises(ValueError, match="frames too small; got 80x63 px, expected at least 64 px a side"):
        frame_interpolate(context, interp_model=film, images=video(2, 63), multiplier=2)


def test_videos_larger_than_the_free_memory_are_refused(
    tmp_path: Path, context: NodeContext, rife: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = node_context(context.models, tmp_path)
    monkeypatch.setattr(own.files, "free_bytes", lambda: 1000)
    with pytest.raises(ValueError, match="images, multiplier: too large for the free memory; got 184320 bytes"):
        frame_interpolate(own, interp_model=rife, images=video(2), multiplier=2)
