"""Deformable convolution beside the plain one, of which it is a generalisation."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from darkroom.engine.layers.deformable import deformed_convolution


def example(size: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(2, 3, 6, 7, generator=generator), torch.randn(4, 3, size, size, generator=generator)


@pytest.mark.parametrize("size", [1, 3, 7])
def test_without_offsets_it_is_a_convolution(size: int) -> None:
    x, kernel = example(size)
    made = deformed_convolution(x, torch.zeros(2, 2 * size**2, 6, 7), torch.ones(2, size**2, 6, 7), kernel)
    torch.testing.assert_close(made, functional.conv2d(x, kernel, padding=size // 2), rtol=1e-4, atol=1e-5)


def test_offsets_move_taps_down_and_right() -> None:
    x, kernel = example()
    offsets = torch.zeros(2, 9, 2, 6, 7)
    offsets[:, :, 0], offsets[:, :, 1] = 1.0, 2.0
    made = deformed_convolution(x, offsets.flatten(1, 2), torch.ones(2, 9, 6, 7), kernel)
    moved = functional.pad(x, (0, 2, 0, 1))[:, :, 1:, 2:]
    inner = functional.conv2d(moved, kernel, padding=1)
    torch.testing.assert_close(made[:, :, 1:-2, 1:-3], inner[:, :, 1:-2, 1:-3], rtol=1e-4, atol=1e-5)


def test_half_a_pixel_is_the_mean_of_two_and_borders_fade_to_zero() -> None:
    x = torch.tensor([[[[2.0, 4.0]]]])
    offsets = torch.tensor([[[[0.0, 0.0]], [[0.5, 0.5]]]])
    made = deformed_convolution(x, offsets, torch.ones(1, 1, 1, 2), torch.ones(1, 1, 1, 1))
    torch.testing.assert_close(made, torch.tensor([[[[3.0, 2.0]]]]))


def test_weights_multiply_taps() -> None:
    x, kernel = example()
    weights = torch.zeros(2, 9, 6, 7)
    weights[:, 4] = 0.5
    made = deformed_convolution(x, torch.zeros(2, 18, 6, 7), weights, kernel)
    middle = functional.conv2d(x, kernel[:, :, 1:2, 1:2]) / 2
    torch.testing.assert_close(made, middle, rtol=1e-4, atol=1e-5)
