"""Colours of images brought to those of others."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from darkroom.engine.images.lab import lab_to_rgb, rgb_to_lab
from darkroom.engine.nodes.library.image.color_transfer import color_transfer
from tests.engine.nodes.small_store import node_context

context: Any = node_context(None)  # type: ignore[arg-type]


def noise(seed: int, low: float, high: float, batch: int = 2) -> torch.Tensor:
    return torch.rand(batch, 24, 32, 3, generator=torch.Generator().manual_seed(seed)) * (high - low) + low


def test_lab_of_known_colours_and_back() -> None:
    colors = torch.tensor([[1.0, 1.0, 0.0, 0.2], [1.0, 0.0, 0.0, 0.5], [1.0, 0.0, 0.0, 0.7]])
    lab = rgb_to_lab(colors)
    assert lab[:, 0].tolist() == pytest.approx([100.0, 0.0, 0.0], abs=0.02)
    assert lab[:, 1].tolist() == pytest.approx([53.24, 80.09, 67.20], abs=0.05)  # red, as colour tables have it
    assert (lab_to_rgb(lab) - colors).abs().max() < 1e-5


@pytest.mark.parametrize("method", ["reinhard_lab", "mkl_lab", "histogram"])
@pytest.mark.parametrize("stats", ["per_frame", "uniform", "target_frame"])
def test_the_mean_colour_becomes_that_of_the_reference(method: str, stats: str) -> None:
    target, reference = noise(1, 0.1, 0.4), noise(2, 0.4, 0.7, batch=1)
    choice = {"source_stats": stats, "target_index": 5}
    made = color_transfer(
        context, image_target=target, image_ref=reference, method=method, source_stats=choice, strength=1.0
    )
    assert (made.mean(dim=(0, 1, 2)) - reference.mean(dim=(0, 1, 2))).abs().max() < 0.02
    assert (made.std(dim=(0, 1, 2)) - reference.std(dim=(0, 1, 2))).abs().max() < 0.02


def test_half_the_strength_goes_half_of_the_way() -> None:
    target, reference = noise(1, 0.1, 0.4), noise(2, 0.4, 0.7)
    given: Any = {"image_target": target, "image_ref": reference, "method": "histogram"}
    half = color_transfer(context, **given, source_stats={"source_stats": "per_frame"}, strength=0.5)
    whole = color_transfer(context, **given, source_stats={"source_stats": "per_frame"}, strength=1.0)
    assert (half - (target + whole) / 2).abs().max() < 1e-6
    assert color_transfer(context, **given, source_stats={"source_stats": "uniform"}, strength=0.0) is target


def test_one_frame_as_the_baseline_keeps_the_frames_apart() -> None:
    target = torch.cat((noise(1, 0.1, 0.3, 1), noise(3, 0.4, 0.6, 1)))
    choice = {"source_stats": "target_frame", "target_index": 0}
    made = color_transfer(
        context, image_target=target, image_ref=noise(2, 0.1, 0.3, 1), method="reinhard_lab", source_stats=choice
    )
    assert made[1].mean() - made[0].mean() > 0.2


def test_an_image_with_opacity_is_refused() -> None:
    with pytest.raises(ValueError, match="image_ref: not three channels; got 4"):
        color_transfer(
            context, image_target=noise(1, 0, 1), image_ref=torch.ones(1, 4, 4, 4), method="histogram",
            source_stats={"source_stats": "uniform"},
        )  # fmt: skip
