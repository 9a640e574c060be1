"""Frames of latents of videos: replaced, cut to a batch, and brought closer to those behind them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from darkroom.engine.nodes.library.latent import video_latents as nodes
from darkroom.engine.nodes.sockets import Latent

context: Any = None


def video(num_frames: int, value: float | None = None, **more: Any) -> Latent:
    samples = torch.arange(float(num_frames)) if value is None else torch.full((num_frames,), value)
    made: Any = {"samples": samples[None, None, :, None, None].expand(1, 2, num_frames, 4, 6).clone(), **more}
    typed: Latent = made
    return typed


def frames_of(latent: Latent) -> list[float]:
    frames: list[float] = latent["samples"][0, 0, :, 0, 0].tolist()
    return frames


@pytest.mark.parametrize(
    ("index", "expected"),
    [
        (1, [0, 9, 9, 3]),
        (-2, [0, 1, 9, 9]),
        (3, [0, 1, 2, 3]),  # does not fit
        (-5, [0, 1, 2, 3]),
    ],
)
def test_frames_are_replaced_where_they_fit(index: int, expected: list[float]) -> None:
    replaced = nodes.replace_video_latent_frames(context, destination=video(4), index=index, source=video(2, 9.0))
    assert frames_of(replaced) == expected


def test_without_a_source_the_destination_stays() -> None:
    destination = video(3)
    assert nodes.replace_video_latent_frames(context, destination=destination, index=0) is destination


@pytest.mark.parametrize(("dim", "shape"), [("t", (2, 2, 2, 4, 6)), ("y", (2, 2, 5, 2, 6)), ("x", (3, 2, 5, 4, 2))])
def test_an_axis_is_cut_into_items(dim: str, shape: tuple[int, ...]) -> None:
    cut = nodes.latent_cut_to_batch(context, samples=video(5), dim=dim, slice_size=2)
    assert tuple(cut["samples"].shape) == shape
    if dim == "t":
        assert cut["samples"][:, 0, :, 0, 0].tolist() == [[0, 1], [2, 3]]  # the fifth frame is dropped


def test_an_image_has_no_frames_to_cut() -> None:
    image: Latent = {"samples": torch.zeros(1, 4, 8, 8)}
    assert nodes.latent_cut_to_batch(context, samples=image, dim="t", slice_size=1) is image


def test_the_first_frames_come_closer_to_those_behind_them_by_a_limit() -> None:
    samples = torch.randn(1, 4, 6, 8, 8, generator=torch.Generator().manual_seed(1))
    samples[:, :, :2] = samples[:, :, :2] * 3 + 5
    changed = nodes.normalize_video_latent_start(
        context, latent={"samples": samples}, start_frame_count=2, reference_frame_count=5
    )["samples"]
    assert torch.equal(changed[:, :, 2:], samples[:, :, 2:])
    assert changed[:, :, 0].mean() == pytest.approx(float(samples[:, :, 0].mean()) - 0.3, abs=1e-4)
    assert changed[:, :, 0].std() == pytest.approx(float(samples[:, :, 0].std()) - 0.35, abs=1e-4)


def test_more_first_frames_than_there_are_is_refused() -> None:
    with pytest.raises(ValueError, match="start_frame_count: .* got 4, expected less than 4"):
        nodes.normalize_video_latent_start(context, latent=video(4), start_frame_count=4, reference_frame_count=1)
