"""Kernels and blend modes by the properties that define them."""

from __future__ import annotations

import pytest
import torch

from darkroom.engine.images.filters import bayer_matrix, blend, gaussian_kernel, sharpen


@pytest.mark.parametrize("order", [2, 4, 8, 16])
def test_a_bayer_matrix_has_every_threshold_once_around_0(order: int) -> None:
    levels = (bayer_matrix(order).flatten().sort().values + 0.5) * order * order
    assert levels.tolist() == pytest.approx([level + 0.5 for level in range(order * order)], abs=1e-3)


def test_a_gaussian_kernel_sums_to_1_and_is_measured_in_radii() -> None:
    assert float(gaussian_kernel(3, 0.7).sum()) == pytest.approx(1.0)
    kernel = gaussian_kernel(2, 1.0)
    assert float(kernel[2, 4] / kernel[2, 2]) == pytest.approx(float(torch.tensor(-0.5).exp()))


def test_sharpening_raises_what_is_brighter_than_around_it() -> None:
    samples = torch.full((1, 1, 5, 5), 0.5)
    samples[..., 2, 2] = 0.6
    assert float(sharpen(samples, 1, 1.0, 0.1)[0, 0, 2, 2]) > 0.6


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(ValueError, match="soft_light"):
        blend(torch.zeros(1), torch.zeros(1), "dissolve")
