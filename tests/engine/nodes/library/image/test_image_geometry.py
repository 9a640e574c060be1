"""The nodes that turn, pad and stitch images: directions, sides and unequal batches."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from darkroom.engine.nodes.library.image import image_geometry

context: Any = None


def test_quarter_turns_are_clockwise() -> None:
    image = torch.tensor([[1.0, 2.0], [3.0, 4.0]]).reshape(1, 2, 2, 1)
    turned = image_geometry.image_rotate(context, image=image, rotation="90 degrees")
    assert turned.flatten().tolist() == [3.0, 1.0, 4.0, 2.0]
    assert torch.equal(image_geometry.image_rotate(context, image=image, rotation="none"), image)


def test_a_padded_image_lies_in_the_middle_of_its_ground() -> None:
    image = torch.zeros(2, 4, 8, 3)
    padded = image_geometry.resize_and_pad_image(
        context, image=image, target_width=16, target_height=16, padding_color="white", interpolation="area"
    )
    assert padded.shape == (2, 16, 16, 3)
    assert padded[:, 4:12].max() == 0.0
    assert padded[:, :4].min() == padded[:, 12:].min() == 1.0


def stitched(first: torch.Tensor, second: torch.Tensor | None, **changes: Any) -> torch.Tensor:
    options = {"direction": "right", "match_image_size": False, "spacing_width": 0, "spacing_color": "white"}
    result: torch.Tensor = image_geometry.image_stitch(context, image1=first, image2=second, **{**options, **changes})
    return result


@pytest.mark.parametrize(
    ("direction", "shape", "is_first_first"),
    [("right", (1, 4, 7, 3), True), ("left", (1, 4, 7, 3), False), ("down", (1, 6, 4, 3), True)],
)
def test_images_are_stitched_on_the_side_that_is_asked_for(
    direction: str, shape: tuple[int, ...], is_first_first: bool
) -> None:
    result = stitched(torch.full((1, 4, 4, 3), 0.25), torch.full((1, 2, 3, 3), 0.75), direction=direction)
    assert result.shape == shape
    assert (result[0, 1, 0, 0].item() == 0.25) is is_first_first


def test_without_a_second_image_nothing_is_stitched() -> None:
    image = torch.rand(1, 2, 2, 3)
    assert stitched(image, None) is image


def test_a_smaller_batch_goes_on_with_its_last_image_and_alpha_is_filled_up() -> None:
    second = torch.zeros(1, 2, 2, 4)
    result = stitched(torch.ones(3, 2, 2, 3), second, match_image_size=False)
    assert result.shape == (3, 2, 4, 4)
    assert result[:, :, :2, 3].min() == 1.0  # the image without alpha is opaque
    assert result[2, :, 2:].max() == 0.0


def test_the_band_between_images_has_its_colour_and_an_even_width() -> None:
    image = torch.zeros(1, 2, 2, 3)
    result = stitched(image, image, spacing_width=3, spacing_color="green")
    assert result.shape == (1, 2, 8, 3)
    assert {tuple(pixel) for pixel in result[0, :, 2:6].reshape(-1, 3).tolist()} == {(0.0, 1.0, 0.0)}
