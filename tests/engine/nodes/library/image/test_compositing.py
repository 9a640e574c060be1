"""The nodes that lay one image over another: places, masks, alpha, unequal sizes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from darkroom.engine.nodes.library.image import compositing

context: Any = None


def composed(**changes: Any) -> torch.Tensor:
    inputs = {
        "destination": torch.zeros(2, 4, 4, 3),
        "source": torch.ones(1, 2, 2, 3),
        "x": 0,
        "y": 0,
        "resize_source": False,
    }
    result: torch.Tensor = compositing.image_composite_masked(context, **{**inputs, **changes})
    return result


def test_what_lies_outside_is_left_out_and_a_single_source_serves_the_batch() -> None:
    result = composed(x=3, y=2)
    assert result.sum(dim=(1, 2)).tolist() == [[2.0] * 3] * 2
    assert result[:, 2:4, 3].min() == 1.0
    assert composed(x=9, y=9).max() == 0.0


def test_a_mask_says_how_much_of_the_source_covers() -> None:
    result = composed(mask=torch.full((1, 8, 8), 0.25))
    assert set(result[:, :2, :2].flatten().tolist()) == {0.25}


def test_a_resized_source_covers_all() -> None:
    assert composed(resize_source=True).min() == 1.0


def test_the_destination_is_not_changed() -> None:
    destination = torch.zeros(1, 4, 4, 3)
    composed(destination=destination)
    assert destination.max() == 0.0


def test_alpha_joined_and_split_is_the_same_mask() -> None:
    image, mask = torch.rand(1, 4, 4, 3), torch.rand(1, 4, 4)
    joined = compositing.join_image_with_alpha(context, image=image, alpha=mask)
    assert joined.shape == (1, 4, 4, 4)
    split, split_mask = compositing.split_image_with_alpha(context, image=joined)
    assert torch.equal(split, image)
    assert torch.allclose(split_mask, mask)


def test_an_image_without_alpha_is_opaque() -> None:
    assert compositing.split_image_with_alpha(context, image=torch.rand(1, 4, 4, 3))[1].max() == 0.0


def test_porter_duff_takes_the_destinations_size_and_the_smallest_batch() -> None:
    image, mask = compositing.porter_duff_image_composite(
        context, source=torch.rand(3, 8, 4, 3), source_alpha=torch.rand(2, 8, 4), destination=torch.rand(4, 6, 6, 3),
        destination_alpha=torch.rand(4, 5, 5), mode="SRC_OVER",
    )  # fmt: skip
    assert image.shape == (2, 6, 6, 3)
    assert mask.shape == (2, 6, 6)


def test_porter_duff_refuses_images_of_different_channels() -> None:
    with pytest.raises(ValueError, match="channels"):
        compositing.porter_duff_image_composite(
            context, source=torch.rand(1, 4, 4, 4), source_alpha=torch.rand(1, 4, 4),
            destination=torch.rand(1, 4, 4, 3), destination_alpha=torch.rand(1, 4, 4), mode="DST",
        )  # fmt: skip


def test_the_shorter_batch_is_repeated_where_alpha_is_joined() -> None:
    images, masks = torch.rand(1, 4, 4, 3), torch.rand(3, 4, 4)
    assert compositing.join_image_with_alpha(context, image=images, alpha=masks).shape == (3, 4, 4, 4)
    joined = compositing.join_image_with_alpha(context, image=torch.rand(5, 4, 4, 3), alpha=masks)
    assert torch.allclose(joined[3, ..., 3], 1.0 - masks[0])
