"""Dilation, erosion and what is made of them, at borders and with even squares."""

from __future__ import annotations

import pytest
import torch

from darkroom.engine.images.morphology import OPERATIONS, dilate, dilate_cross, erode, morphology


def dot(size: int = 7) -> torch.Tensor:
    samples = torch.zeros(1, 1, size, size)
    samples[..., size // 2, size // 2] = 1.0
    return samples


def reached(samples: torch.Tensor) -> tuple[int, int]:
    """First and last row that is not 0."""
    rows = samples[0, 0].amax(dim=1).nonzero().flatten()
    return int(rows[0]), int(rows[-1])


def test_an_even_square_is_mirrored_between_dilation_and_erosion() -> None:
    assert reached(dilate(dot(), 3)) == (2, 4)
    assert reached(dilate(dot(), 4)) == (1, 4)
    assert reached(1 - erode(1 - dot(), 4)) == (2, 5)


def test_opening_and_closing_shift_nothing() -> None:
    square = torch.zeros(1, 1, 12, 12)
    square[..., 4:8, 4:8] = 1.0
    for size in (3, 4):
        assert torch.equal(morphology(square, "open", size), square)
        assert torch.equal(morphology(square, "close", size), square)


def test_what_lies_outside_never_counts() -> None:
    plain = torch.full((1, 3, 4, 4), 0.5)
    assert torch.equal(dilate(plain, 9), plain)
    assert torch.equal(erode(plain, 9), plain)


def test_a_cross_reaches_four_neighbours() -> None:
    assert dilate_cross(dot()).sum() == 5


@pytest.mark.parametrize(
    ("operation", "expected"), [("gradient", 9.0), ("top_hat", 1.0), ("bottom_hat", 0.0), ("open", 0.0), ("close", 1.0)]
)
def test_the_derived_operations_are_made_of_dilation_and_erosion(operation: str, expected: float) -> None:
    assert morphology(dot(), operation, 3).sum() == expected


def test_another_operation_is_refused() -> None:
    with pytest.raises(ValueError, match=OPERATIONS[0]):
        morphology(dot(), "thin", 3)
