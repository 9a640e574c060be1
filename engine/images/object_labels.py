"""Objects of a video drawn over its frames, each in a colour with its number and score. `N` objects, `H W` pixels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import torch
from torch.nn import functional

COLOURS: Final = (
    (0.12, 0.47, 0.71), (1.0, 0.5, 0.05), (0.17, 0.63, 0.17), (0.84, 0.15, 0.16), (0.58, 0.4, 0.74), (0.55, 0.34, 0.29),
    (0.89, 0.47, 0.76), (0.5, 0.5, 0.5), (0.74, 0.74, 0.13), (0.09, 0.75, 0.81), (0.94, 0.76, 0.06), (0.42, 0.68, 0.84),
)  # fmt: skip
DIGITS: Final = ("75557", "26227", "71747", "71717", "55711", "74717", "74757", "71111", "75757", "75717")
"""Digits of five rows, each an octal digit whose bits are its three pixels."""

COLUMNS, ROWS = 3, 5
LEAST_SCALE, PX_PER_SCALE = 3, 240
SIDE_PER_SCALE = 15.0  # of a square as large as the object
LEAST_PIXELS = 2  # of an object that gets a number


def with_objects(
    frame: torch.Tensor, masks: Iterable[torch.Tensor], scores: Sequence[float], opacity: float
) -> torch.Tensor:
    """Return a frame [H, W, 3] of 0..1 with its objects, each of a mask [H, W] (bool), in colours and numbered.

    Masks are taken one at a time. Where objects overlap the first one is seen. A score below 1 stands in per cent below
    the number.
    """
    drawn = frame.clone()
    is_free = torch.ones(frame.shape[:2], dtype=torch.bool)
    places: list[tuple[int, int, int, int]] = []  # number, pixels, and centre of an object
    for index, mask in enumerate(masks):
        own = mask & is_free
        drawn[own] = frame[own] * (1 - opacity) + _colour(index) * opacity
        is_free &= ~mask
        num_pixels = int(mask.sum())
        if num_pixels >= LEAST_PIXELS:
            rows, columns = (mask.sum(dim=1 - axis) @ torch.arange(mask.shape[axis]) for axis in (0, 1))
            places.append((index, num_pixels, int(columns) // num_pixels, int(rows) // num_pixels))
    most = max(LEAST_SCALE, frame.shape[0] // PX_PER_SCALE)
    for index, num_pixels, x, y in places:
        scale = min(most, max(1, int(num_pixels**0.5 / SIDE_PER_SCALE)))
        _write(drawn, index, x, y, _colour(index), scale)
        if index < len(scores) and scores[index] < 1.0:
            _write(drawn, int(scores[index] * 100), x, y + ROWS * scale + 3, _colour(index), max(1, scale * 2 // 3))
    return drawn


def _colour(index: int) -> torch.Tensor:
    return torch.tensor(COLOURS[index % len(COLOURS)])


def _write(frame: torch.Tensor, number: int, x: int, y: int, colour: torch.Tensor, scale: int) -> None:
    """Write a number around a pixel, with a black line around its digits. Changes the frame."""
    step = (COLUMNS + 1) * scale
    left, top = x - (len(str(number)) * step - scale) // 2, y - ROWS * scale // 2
    for place, digit in enumerate(str(number)):
        rows = ([int(bit) for bit in f"{int(row):03b}"] for row in DIGITS[int(digit)])
        inside = torch.tensor([*rows]).repeat_interleave(scale, 0).repeat_interleave(scale, 1)
        around = functional.max_pool2d(functional.pad(inside, (1,) * 4)[None].float(), 3, stride=1, padding=1)[0] > 0
        _fill(frame, around, left + place * step - 1, top - 1, torch.zeros(3))
        _fill(frame, inside > 0, left + place * step, top, colour)


def _fill(frame: torch.Tensor, shape: torch.Tensor, left: int, top: int, colour: torch.Tensor) -> None:
    """Fill a shape [h, w] at a place of a frame, what lies inside of it."""
    rows, columns = shape.nonzero(as_tuple=True)
    rows, columns = rows + top, columns + left
    is_inside = (rows >= 0) & (rows < frame.shape[0]) & (columns >= 0) & (columns < frame.shape[1])
    frame[rows[is_inside], columns[is_inside]] = colour
