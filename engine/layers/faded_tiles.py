"""Evaluation of a network of videos in tiles of the image's sides that fade into each other along a cosine.

A tile is a part of all frames. `B` batch, `C` channels, `F` frames, `H W` the input's sides, `r` output cells for an
input cell, or less than one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from darkroom.engine.layers.tiles import tile_places

LEAST_WEIGHT = 1e-6


@dataclass(frozen=True, slots=True)
class FadedTiling:
    """Sides of tiles and of what neighbours share, in cells of the input: rows, then columns.

    `enlarges` cells of the output are one of the input, or one cell of the output is `reduces` of the input.
    """

    tile: tuple[int, int]
    shared: tuple[int, int]
    enlarges: int = 1
    reduces: int = 1

    def out(self, cells: int) -> int:
        """Return the cells of the output that whole cells of the input become."""
        return cells * self.enlarges // self.reduces

    def places(self, sides: tuple[int, int]) -> list[tuple[tuple[int, int], ...]]:
        """Return (start, length) along both sides of each tile of which there is output."""
        shared = tuple(min(shared, side - 1) for shared, side in zip(self.shared, self.tile, strict=True))
        found = tile_places(sides, self.tile, shared)
        return [place for place in found if all(self.out(length) for _, length in place)]

    def is_one(self, sides: tuple[int, int]) -> bool:
        """Return True for an input that is one tile."""
        return all(side <= limit for side, limit in zip(sides, self.tile, strict=True))


class FadedSum:
    """The output of tiles of one input of some sides, as far as it was added, [B, C, F, H, W] float32 on the CPU."""

    def __init__(self, tiling: FadedTiling, sides: tuple[int, int]) -> None:
        self._tiling, self._sides = tiling, sides
        rows, columns = (-(-side * tiling.enlarges // tiling.reduces) for side in sides)
        self._total: torch.Tensor | None = None
        self._weights = torch.zeros(rows, columns)

    def add(self, place: tuple[tuple[int, int], ...], tile: torch.Tensor) -> None:
        """Add the output [B, C, F, h, w] of the tile at a place."""
        tile = tile.to("cpu", torch.float32)
        if self._total is None:
            self._total = torch.zeros(*tile.shape[:3], *self._weights.shape)
        weights = torch.outer(*(self._along(axis, span, tile.shape[3 + axis]) for axis, span in enumerate(place)))
        rows, columns = (
            slice(self._tiling.out(start), self._tiling.out(start) + length)
            for (start, _), length in zip(place, tile.shape[3:], strict=True)
        )
        self._total[..., rows, columns] += tile * weights
        self._weights[rows, columns] += weights

    def _along(self, axis: int, span: tuple[int, int], length: int) -> torch.Tensor:
        """Return the weights [length] of a tile along one axis: they fade where there is a neighbour."""
        start, given = span
        weights = torch.ones(length)
        shared = min(self._tiling.out(min(self._tiling.shared[axis], self._tiling.tile[axis] - 1)), length // 2)
        ramp = 0.5 - 0.5 * torch.cos(torch.linspace(0, 1, shared) * torch.pi)
        if shared and start > 0:
            weights[:shared] = ramp
        if shared and start + given < self._sides[axis]:
            weights[-shared:] = 1.0 - ramp
        return weights

    def result(self) -> torch.Tensor:
        """Return the mean of all tiles by their weights; zeros where there was none."""
        if self._total is None:
            raise RuntimeError("tiles: none was added")
        return self._total / self._weights.clamp(min=LEAST_WEIGHT)


def run_in_faded_tiles(
    videos: torch.Tensor, function: Callable[[torch.Tensor], torch.Tensor], tiling: FadedTiling
) -> torch.Tensor:
    """Apply `function` to overlapping tiles of all frames of [B, C, F, H, W] -> [B, C', F', r H, r W], on the CPU.

    An input that is one tile is passed as it is.
    """
    sides = (videos.shape[3], videos.shape[4])
    if tiling.is_one(sides):
        return function(videos).to("cpu")
    total = FadedSum(tiling, sides)
    for place in tiling.places(sides):
        (top, height), (left, width) = place
        total.add(place, function(videos[..., top : top + height, left : left + width]))
    return total.result()
