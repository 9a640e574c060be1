"""Sizes and pixels of images that keep their proportions."""

from __future__ import annotations

import pytest
import torch

from darkroom.engine.images.naflex_pixels import naflex_pixels, naflex_size

HALF = (0.5, 0.5, 0.5)


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ((256, 256), (256, 256)),
        ((512, 512), (256, 256)),
        ((64, 48), (288, 224)),
        ((1, 100000), (16, 4096)),
        ((100000, 1), (4096, 16)),
        ((1, 1), (112, 112)),  # a hundred times as large at most
    ],
)
def test_a_size_has_whole_patches_and_at_most_so_many(size: tuple[int, int], expected: tuple[int, int]) -> None:
    assert naflex_size(*size, 16, 256) == expected


def test_pixels_are_normalised_without_an_alpha_channel() -> None:
    image = torch.rand(2, 40, 64, 4)
    pixels = naflex_pixels(image, 16, 64, HALF, HALF)
    assert pixels.shape == (2, 3, 96, 160) and pixels.min() >= -1 and pixels.max() <= 1
    other = torch.cat([image[..., :3], torch.zeros(2, 40, 64, 1)], dim=-1)
    assert torch.equal(naflex_pixels(other, 16, 64, HALF, HALF), pixels)
    assert torch.allclose(naflex_pixels(torch.ones(1, 40, 64, 3), 16, 64, HALF, HALF), torch.ones(1, 3, 96, 160))
