"""Images as CLIP's image encoder takes them: cut to a square, rounded to 8 bits, normalised."""

from __future__ import annotations

import pytest
import torch

from darkroom.engine.images.vision_pixels import DEVIATION, MEAN, vision_pixels


def test_an_image_of_the_right_size_is_only_normalised() -> None:
    made = vision_pixels(torch.ones(1, 8, 8, 3), 8)
    expected = (1 - torch.tensor(MEAN)) / torch.tensor(DEVIATION)
    torch.testing.assert_close(made[0, :, 3, 3], expected)


@pytest.mark.parametrize(("height", "width"), [(16, 40), (40, 16), (33, 20)])
def test_the_middle_square_is_taken(height: int, width: int) -> None:
    image = torch.zeros(1, height, width, 4)
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    image[:, top : top + side, left : left + side] = 1
    cut, squeezed = (vision_pixels(image, 8, (0, 0, 0), (1, 1, 1), crop=crop) for crop in (True, False))
    assert cut.shape == squeezed.shape == (1, 3, 8, 8)
    assert bool((cut[..., 2:6, 2:6] == 1).all())
    assert bool((squeezed[..., 0] == 0).any()) or bool((squeezed[..., 0, :] == 0).any())


def test_values_are_those_of_8_bits() -> None:
    made = vision_pixels(torch.rand(1, 20, 20, 3), 8, (0, 0, 0), (1, 1, 1)) * 255
    torch.testing.assert_close(made, made.round())
