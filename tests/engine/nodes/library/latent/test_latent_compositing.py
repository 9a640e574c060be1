"""One latent laid over another: cells of 8 pixels, faded sides, masks."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from darkroom.engine.nodes.library.latent import latent_compositing as nodes
from darkroom.engine.nodes.sockets import Latent

context: Any = None


def latent(value: float, size: int, batch: int = 1) -> Latent:
    return {"samples": torch.full((batch, 4, size, size), value)}


def composed(x: int, y: int, feather: int) -> torch.Tensor:
    result = nodes.latent_composite(
        context, samples_to=latent(0.0, 8, batch=2), samples_from=latent(1.0, 4), x=x, y=y, feather=feather
    )
    samples: torch.Tensor = result["samples"]
    return samples


def test_pixels_are_counted_in_cells_of_8_and_what_lies_outside_is_left_out() -> None:
    assert composed(16, 8, 0)[1, 0].nonzero().tolist() == [[y, x] for y in range(1, 5) for x in range(2, 6)]
    assert composed(56, 56, 0).sum() == 2 * 4
    assert composed(640, 0, 0).sum() == 0


def test_only_sides_within_the_ground_are_faded() -> None:
    result = composed(16, 0, 16)[0, 0]
    assert result[0, 2:6].tolist() == pytest.approx([0.5, 1.0, 1.0, 0.5])  # the top meets the border
    assert result[3, 2:6].tolist() == pytest.approx([0.25, 0.5, 0.5, 0.25])


def test_a_mask_of_pixels_says_where_the_source_covers() -> None:
    mask = torch.zeros(1, 32, 32)
    mask[:, :, 16:] = 1.0
    destination = latent(0.0, 8)
    result = nodes.latent_composite_masked(
        context, destination=destination, source=latent(1.0, 4), x=8, y=0, resize_source=False, mask=mask
    )["samples"]
    assert result[0, 0, 0].tolist() == [0, 0, 0, 1, 1, 0, 0, 0]
    assert destination["samples"].max() == 0.0


def test_a_resized_source_covers_all() -> None:
    result = nodes.latent_composite_masked(
        context, destination=latent(0.0, 8, batch=2), source=latent(1.0, 4), x=0, y=0, resize_source=True
    )["samples"]
    assert result.min() == 1.0
