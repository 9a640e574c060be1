"""TripoSplat's images: the object on a black square with a margin, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from darkroom.engine.families.triposplat.nodes.preparation import triposplat_preprocess_image

SIDE = 256
CONTEXT: Any = None  # the node uses nothing of it


def prepared(image: torch.Tensor, mask: torch.Tensor, erode_radius: int = 0) -> torch.Tensor:
    out: torch.Tensor = triposplat_preprocess_image(
        CONTEXT, image=image, mask=mask, erode_radius=erode_radius, size=SIDE
    )
    return out


def test_the_object_is_in_the_middle_of_a_black_square_with_a_margin() -> None:
    mask = torch.zeros(1, SIDE, 2 * SIDE)
    mask[:, 20:120, 300:400] = 1.0
    out = prepared(torch.ones(1, SIDE, 2 * SIDE, 3), mask)
    assert out.shape == (1, SIDE, SIDE, 3)
    lit = (out[0, :, :, 0] > 0.5).nonzero()
    first, last = lit.min(dim=0).values, lit.max(dim=0).values
    margin = SIDE * (1 - 1 / 1.2) / 2
    assert (first - margin).abs().max() <= 5 and (SIDE - 1 - last - margin).abs().max() <= 5
    assert out[0, :10].max() == 0.0


def test_an_object_at_the_edge_is_filled_up_with_black() -> None:
    mask = torch.zeros(1, SIDE, SIDE)
    mask[:, :80, :80] = 1.0
    out = prepared(torch.ones(1, SIDE, SIDE, 3), mask)
    assert out[0, 5, 5].tolist() == [0.0, 0.0, 0.0] and out[0, SIDE // 2, SIDE // 2].min() == 1.0


def test_a_mask_counts_for_every_image_of_a_batch_and_is_eroded() -> None:
    mask = torch.zeros(1, 32, 32)
    mask[:, 8:24, 8:24] = 1.0
    images = torch.rand(2, SIDE, SIDE, 3)
    out = prepared(images, mask)
    assert out.shape == (2, SIDE, SIDE, 3) and not torch.equal(out[0], out[1])
    assert not torch.equal(prepared(images, mask, erode_radius=8), out)


@pytest.mark.parametrize("rows", [0, 1])
def test_a_mask_without_an_object_is_refused(rows: int) -> None:
    mask = torch.zeros(1, SIDE, SIDE)
    mask[:, :rows, :rows] = 1.0
    with pytest.raises(ValueError, match="mask: no object is left"):
        prepared(torch.ones(1, SIDE, SIDE, 3), mask)


def test_an_image_that_would_become_too_long_is_refused() -> None:
    with pytest.raises(ValueError, match="it is too long for this size; got 400x4"):
        prepared(torch.ones(1, 4, 400, 3), torch.ones(1, 4, 400))
