"""Overlapping tiles of an image, and an image of tiles.

`B` batch, `H W` pixels: images are float32 `[B, H, W, C]`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

import torch

LEAST_STRIDE = 0.25  # of a tile, from one to the next
LEAST_WEIGHT = 1e-5  # of a tile's border


class Tile(NamedTuple):
    """Left, top, right and bottom of a tile, in pixels."""

    left: int
    top: int
    right: int
    bottom: int


def tiles_of(width: int, height: int, tile_width: int, tile_height: int, overlap: int) -> list[Tile]:
    """Return the tiles that cover an image, row by row. They are as large as the image where that is smaller."""
    rows = _spans(height, tile_height, overlap)
    columns = _spans(width, tile_width, overlap)
    return [Tile(left, top, right, bottom) for (top, bottom), (left, right) in product(rows, columns)]


def _spans(length: int, size: int, overlap: int) -> list[tuple[int, int]]:
    """Return start and end of each tile along one side; the last ends with the side. Raises ValueError."""
    stride = round(max(size * LEAST_STRIDE, size - overlap))
    if stride < 1:
        raise ValueError(
            f"tile_width and tile_height: too small for the overlap; got {size} pixels, expected at least 3"
        )
    spans, start = [], 0
    while True:
        end = min(start + size, length)
        spans.append((max(0, end - size), end))
        if end >= length:
            return spans
        start += stride


def merged(tiles: Sequence[torch.Tensor], width: int, height: int, overlap: int) -> torch.Tensor:
    """Return the image [B, height, width, C] of tiles in the order of `tiles_of`, of the size of the first.

    Where tiles overlap each counts by half a sine from its border to its middle. Surplus tiles are passed over, and
    where some are missing the image is black.
    """
    batch, tile_height, tile_width, channels = tiles[0].shape
    weight = tiles[0].new_ones(tile_height, tile_width, 1)
    if overlap > 0:
        weight = (_faded(tile_height)[:, None] * _faded(tile_width)[None, :])[..., None].to(weight)
    total = tiles[0].new_zeros(batch, height, width, channels)
    weights = tiles[0].new_zeros(height, width, 1)
    for tile, place in zip(tiles, tiles_of(width, height, tile_width, tile_height, overlap), strict=False):
        rows = slice(place.top, place.top + min(place.bottom - place.top, tile.shape[1], tile_height))
        columns = slice(place.left, place.left + min(place.right - place.left, tile.shape[2], tile_width))
        own = weight[: rows.stop - rows.start, : columns.stop - columns.start]
        total[:, rows, columns] += tile[:, : own.shape[0], : own.shape[1]] * own
        weights[rows, columns] += own
    return total / torch.where(weights == 0, 1.0, weights)


def _faded(length: int) -> torch.Tensor:
    return torch.sin(math.pi * torch.linspace(0, 1, length)).clamp(min=LEAST_WEIGHT)
