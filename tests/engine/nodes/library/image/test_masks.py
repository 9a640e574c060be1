"""The mask nodes, ComfyUI's oddities of rounding and of borders included."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from darkroom.engine.nodes.library.image import masks

context: Any = None


def test_a_colour_is_found_after_rounding_to_8_bits() -> None:
    image = torch.tensor([[1.0, 0.5, 0.0], [1.0, 0.5, 0.01]]).reshape(1, 1, 2, 3)
    assert masks.image_color_to_mask(context, image=image, color=0xFF8000).flatten().tolist() == [1.0, 0.0]


@pytest.mark.parametrize(
    ("operation", "expected"),
    [("multiply", 0.24), ("add", 1.0), ("subtract", 0.0), ("and", 0.0), ("or", 1.0), ("xor", 1.0)],
)
def test_masks_are_combined_where_they_overlap(operation: str, expected: float) -> None:
    destination, source = torch.full((1, 3, 3), 0.4), torch.full((4, 4), 0.6)
    result = masks.mask_composite(context, destination=destination, source=source, x=1, y=1, operation=operation)
    assert result[0, 1:, 1:].unique().tolist() == pytest.approx([expected])
    assert result[0, 0].unique().tolist() == pytest.approx([0.4])
    assert destination.max() == pytest.approx(0.4)


def test_feathering_fades_in_from_each_side() -> None:
    result = masks.feather_mask(context, mask=torch.ones(1, 1, 4), left=0, top=0, right=2, bottom=0)
    assert result.flatten().tolist() == [1.0, 1.0, 1.0, 0.5]
    result = masks.feather_mask(context, mask=torch.ones(1, 1, 4), left=2, top=0, right=0, bottom=0)
    assert result.flatten().tolist() == [0.5, 1.0, 1.0, 1.0]


def test_a_mask_grows_as_a_square_or_with_tapered_corners_and_shrinks_back() -> None:
    dot = torch.zeros(1, 5, 5)
    dot[0, 2, 2] = 1.0
    square = masks.grow_mask(context, mask=dot, expand=1, tapered_corners=False)
    cross = masks.grow_mask(context, mask=dot, expand=1, tapered_corners=True)
    assert (square.sum(), cross.sum()) == (9, 5)
    assert torch.equal(masks.grow_mask(context, mask=square, expand=-1, tapered_corners=False), dot)
    assert torch.equal(masks.grow_mask(context, mask=dot, expand=0, tapered_corners=True), dot)


def test_a_threshold_is_exclusive() -> None:
    mask = torch.tensor([[0.2, 0.5, 0.7]])
    assert masks.threshold_mask(context, mask=mask, value=0.5).flatten().tolist() == [0.0, 0.0, 1.0]


def test_a_crop_past_the_mask_is_cut_off() -> None:
    assert masks.crop_mask(context, mask=torch.ones(4, 4), x=3, y=1, width=9, height=2).shape == (1, 2, 1)
