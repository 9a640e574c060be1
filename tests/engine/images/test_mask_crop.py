"""Images cropped to a mask."""

from __future__ import annotations

import torch

from darkroom.engine.images.mask_crop import cropped_to_mask

RED, BLUE = torch.tensor([1.0, 0.0, 0.0]), (0.0, 0.0, 1.0)


def scene() -> tuple[torch.Tensor, torch.Tensor]:
    """Return a red image and a mask of a rectangle, 20 wide and 10 high."""
    mask = torch.zeros(64, 64)
    mask[30:40, 20:40] = 1.0
    return RED.expand(64, 64, 3), mask


def covered(made: torch.Tensor) -> tuple[int, int]:
    """Return width and height of what is red."""
    is_red = made[..., 0] > 0.5
    return int(is_red.any(0).sum()), int(is_red.any(1).sum())


def test_the_longer_side_fills_the_image_and_the_rest_is_background() -> None:
    image, mask = scene()
    made = cropped_to_mask(image, mask, 64, 64, 1.0, 0, BLUE)
    width, height = covered(made)
    assert made.shape == (64, 64, 3) and abs(width - 64) <= 4 and abs(height - 32) <= 2
    assert made[0, 0].tolist() == [0.0, 0.0, 1.0]


def test_a_margin_stays_free() -> None:
    image, mask = scene()
    width, height = covered(cropped_to_mask(image, mask, 80, 80, 2.0, 0, BLUE))
    assert abs(width - 40) <= 2 and abs(height - 20) <= 2


def test_a_grown_mask_covers_more() -> None:
    image, mask = scene()
    assert covered(cropped_to_mask(image, mask, 64, 64, 1.0, 5, BLUE))[1] > 32  # 20 of 30 px instead of 10 of 20
    assert covered(cropped_to_mask(image, mask, 64, 64, 1.0, -3, BLUE))[1] < 32


def test_a_mask_of_the_surroundings_is_taken_for_its_opposite() -> None:
    image, mask = scene()
    mask[12:52, 12:52] = 1.0
    expected = cropped_to_mask(image, mask, 64, 64, 1.0, 0, BLUE)
    assert torch.equal(cropped_to_mask(image, 1.0 - mask, 64, 64, 1.0, 0, BLUE), expected)


def test_a_mask_that_covers_nothing_gives_the_whole_image() -> None:
    image, _ = scene()
    assert covered(cropped_to_mask(image, torch.zeros(64, 64), 64, 64, 1.0, 0, BLUE)) == (64, 64)


def test_sides_outside_of_the_image_are_background() -> None:
    mask = torch.zeros(64, 64)
    mask[:8, :32] = 1.0  # wide, at the upper border
    made = cropped_to_mask(RED.expand(64, 64, 3), mask, 64, 64, 1.0, 0, BLUE)
    assert made[0, 32].tolist() == [0.0, 0.0, 1.0]
