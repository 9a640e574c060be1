"""Evaluation of MiniMax H3's video autoencoder on tiles of 256 pixels a side, which fade into each other.

The published network is one of such tiles: they are part of its results, whatever memory there is. Tiles share at least
64 pixels, and as evenly as whole cells allow.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

TILE_CELLS, LEAST_SHARED_CELLS = 16, 4  # latent cells a side


@dataclass(frozen=True, slots=True)
class Span:
    """A tile's cells along one side, and how many it shares with the tile before and the one behind it."""

    start: int
    length: int
    shared_before: int
    shared_behind: int


def tile_spans(cells: int) -> list[Span]:
    """Return the tiles along a side of so many latent cells."""
    if cells <= TILE_CELLS:
        return [Span(0, cells, 0, 0)]
    step = TILE_CELLS - LEAST_SHARED_CELLS
    num_tiles = 1 + -(-(cells - TILE_CELLS) // step)
    num_seams = num_tiles - 1
    spare = num_tiles * TILE_CELLS - num_seams * LEAST_SHARED_CELLS - cells
    shared = [LEAST_SHARED_CELLS + spare // num_seams + (seam < spare % num_seams) for seam in range(num_seams)]
    starts = [0]
    for overlap in shared:
        starts.append(starts[-1] + TILE_CELLS - overlap)
    return [Span(*span) for span in zip(starts, [TILE_CELLS] * num_tiles, [0, *shared], [*shared, 0], strict=True)]


def cross_fade(before: torch.Tensor, after: torch.Tensor, dim: int) -> torch.Tensor:
    """Fade from the end of one stretch into the start of the next, which have the same shape, along a dimension."""
    length = after.shape[dim]
    shape = [-1 if index == dim % after.ndim else 1 for index in range(after.ndim)]
    weight = (torch.arange(length, device=after.device, dtype=after.dtype) / length).view(shape)
    return before * (1 - weight) + after * weight


def in_tiles(
    x: torch.Tensor, function: Callable[[torch.Tensor], torch.Tensor], *, cell_in: int, cell_out: int
) -> torch.Tensor:
    """Apply a function to the tiles of `[B, C, F, H, W]` and join its results.

    A latent cell is `cell_in` rows of `x` and `cell_out` of the result. A tile fades from the unblended one above it,
    then from the unblended one before it.
    """
    rows, columns = (tile_spans(length // cell_in) for length in x.shape[-2:])
    if len(rows) == len(columns) == 1:
        return function(x)
    canvas: torch.Tensor | None = None
    above: list[torch.Tensor] = []  # the last rows of each tile over those of this row
    for row in rows:
        below = []
        before: torch.Tensor | None = None  # the last columns of the tile before this one
        for index, column in enumerate(columns):
            tile = function(_part(_part(x, -2, row, cell_in), -1, column, cell_in))
            below.append(_end(tile, -2, row.shared_behind * cell_out))
            behind = _end(tile, -1, column.shared_behind * cell_out)
            if row.shared_before:
                _fade_in(tile, above[index], -2)
            if before is not None:
                _fade_in(tile, before, -1)
            before = behind
            if canvas is None:
                sides = (length // cell_in * cell_out for length in x.shape[-2:])
                canvas = tile.new_empty(*tile.shape[:-2], *sides)
            _part(_part(canvas, -2, row, cell_out), -1, column, cell_out).copy_(tile)  # seams are written again
        above = below
    assert canvas is not None
    return canvas


def _part(x: torch.Tensor, dim: int, span: Span, cell: int) -> torch.Tensor:
    return x.narrow(dim, span.start * cell, span.length * cell)


def _end(tile: torch.Tensor, dim: int, length: int) -> torch.Tensor:
    """Return a copy of the end of a tile, empty without a tile behind it."""
    return tile.narrow(dim, tile.shape[dim] - length, length).clone()


def _fade_in(tile: torch.Tensor, before: torch.Tensor, dim: int) -> None:
    """Fade the start of a tile, in place, from the end of the one before it."""
    start = tile.narrow(dim, 0, before.shape[dim])
    start.copy_(cross_fade(before, start, dim))
