"""Layers on the occupied cells of a grid: convolutions over neighbouring cells, and cells that split into smaller ones.

`N` cells, `C` channels. Cells [N, 3] are whole numbers from 0 on, x first. Parameters are named as in the checkpoints
of TRELLIS 2 (https://github.com/microsoft/TRELLIS.2).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.layers.basic import Linear

NORM_EPS = 1e-6
SIDE = 1 << 12  # cells a side of any grid, and one around them: a cell's key is a number below its cube
KERNEL = 3
NUM_CHILDREN = 8
CHUNK_BYTES = 1 << 28  # of what a convolution gathers at once
MOST_CELLS = 1 << 24  # of one shape: those of a surface in a grid of 2048 are fewer


def keys_of(cells: torch.Tensor, side: int) -> torch.Tensor:
    """Return the positions of cells [..., 3] in a dense grid, int64."""
    x, y, z = cells.long().unbind(-1)
    return (x * side + y) * side + z


class CellIndex:
    """Finder of cells by their keys."""

    def __init__(self, keys: torch.Tensor) -> None:
        self._keys, self._order = keys.sort()

    def find(self, keys: torch.Tensor) -> torch.Tensor:
        """Return the indices of the cells of these keys, int64; -1 where there is no such cell."""
        if not self._keys.numel():
            return torch.full_like(keys, -1)
        at = torch.searchsorted(self._keys, keys).clamp_(max=self._keys.numel() - 1)
        return torch.where(self._keys[at] == keys, self._order[at], -1)


def neighbors_of(cells: torch.Tensor) -> torch.Tensor:
    """Return the indices [N, 27] of the cells around each cell, x outermost, int32; N where there is none."""
    keys = keys_of(cells + 1, SIDE)
    index = CellIndex(keys)
    found = torch.empty(cells.shape[0], KERNEL**3, dtype=torch.int32, device=cells.device)
    steps = range(-1, KERNEL - 1)
    for column, (x, y, z) in enumerate((x, y, z) for x in steps for y in steps for z in steps):
        at = index.find(keys + (x * SIDE + y) * SIDE + z)
        found[:, column] = torch.where(at < 0, cells.shape[0], at)
    return found


class SparseConv3d(nn.Module):
    """A convolution over the 27 cells around each, of which those that are not occupied count as zeros."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out_channels, KERNEL, KERNEL, KERNEL, in_channels))
        self.bias = nn.Parameter(torch.empty(out_channels))

    def forward(self, x: torch.Tensor, neighbors: torch.Tensor) -> torch.Tensor:
        """Return the channels [N, O] of `x` [N, I] with neighbours [N, 27], in chunks of bounded memory."""
        weight, bias = self.weight.to(x).flatten(1), self.bias.to(x)
        padded = torch.cat([x, x.new_zeros(1, x.shape[1])])
        rows = max(1, CHUNK_BYTES // (weight.shape[1] * x.element_size()))
        out = x.new_empty(x.shape[0], weight.shape[0])
        for start in range(0, x.shape[0], rows):
            part = slice(start, start + rows)
            out[part] = functional.linear(padded[neighbors[part]].flatten(1), weight, bias)
        return out


class ConvNextBlock(nn.Module):
    """A convolution and a feed-forward layer, added to its input (Liu et al. 2022, arXiv 2201.03545)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(channels, eps=NORM_EPS)
        self.conv = SparseConv3d(channels, channels)
        self.mlp = nn.Sequential(Linear(channels, 4 * channels), nn.SiLU(), Linear(4 * channels, channels))

    def forward(self, x: torch.Tensor, neighbors: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.mlp(self.norm(self.conv(x, neighbors)))
        return out.add_(x)


@dataclass(frozen=True, slots=True)
class Split:
    """Occupied children of cells.

    `occupied` [N, 8] says of each child of each cell whether it is, `rows` [M] are the indices of those that are among
    all children, and `cells` [M, 3] are they in a grid of twice as many cells a side.
    """

    occupied: torch.Tensor
    rows: torch.Tensor
    cells: torch.Tensor


class SplittingBlock(nn.Module):
    """Convolutions between which each cell splits into those of its eight children that are occupied.

    With `predicts` the block decides itself which those are.
    """

    def __init__(self, channels: int, out_channels: int, *, predicts: bool) -> None:
        super().__init__()
        self.out_channels = out_channels
        self.norm1 = nn.LayerNorm(channels, eps=NORM_EPS)
        self.norm2 = nn.LayerNorm(out_channels, eps=NORM_EPS, elementwise_affine=False)
        self.conv1 = SparseConv3d(channels, NUM_CHILDREN * out_channels)
        self.conv2 = SparseConv3d(out_channels, out_channels)
        self.to_subdiv = Linear(channels, NUM_CHILDREN) if predicts else None

    def split(self, x: torch.Tensor, cells: torch.Tensor, given: torch.Tensor | None) -> Split:
        """Return the cells that are made of `cells`: those that the block predicts, or the given ones [N, 8].

        Raises ValueError for none or more than 2**24, and for given ones of another number of cells.
        """
        occupied = given if self.to_subdiv is None else self.to_subdiv(x) > 0
        if occupied is None or occupied.shape[0] != cells.shape[0]:
            number = None if occupied is None else occupied.shape[0]
            raise ValueError(
                f"shape_subdivides: they are those of another shape; got {number} cells, expected {cells.shape[0]}"
            )
        parents, children = occupied.to(cells.device).nonzero(as_tuple=True)
        if not 0 < parents.numel() <= MOST_CELLS:
            raise ValueError(
                f"samples: a shape of as many voxels is not decoded; got {parents.numel()}, expected 1 to {MOST_CELLS}"
            )
        corners = torch.stack([children & 1, children >> 1 & 1, children >> 2], dim=-1)
        return Split(occupied, parents * NUM_CHILDREN + children, cells[parents] * 2 + corners)

    def forward(self, x: torch.Tensor, neighbors: torch.Tensor, split: Split, of_split: torch.Tensor) -> torch.Tensor:
        """Return the channels [M, O] of the split cells, whose neighbours are `of_split`, of those of `x` [N, C]."""
        inner = self.conv1(functional.silu(self.norm1(x)), neighbors)
        inner = inner.view(-1, self.out_channels)[split.rows]
        inner = self.conv2(functional.silu(self.norm2(inner)), of_split)
        kept = x.reshape(x.shape[0] * NUM_CHILDREN, x.shape[1] // NUM_CHILDREN)[split.rows]  # [M, C / 8]
        out: torch.Tensor = inner.add_(kept.repeat_interleave(self.out_channels // kept.shape[1], dim=1))
        return out
