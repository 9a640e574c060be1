"""Latents of cells: of each item of a batch a list of cells of a grid, padded to the length of the longest.

`B` items, `N` cells of the longest, `M` cells of all items. Coordinates are ComfyUI's: int [M, 4], the index of the
item, then x, y, z, in order of items.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

CHANNELS = 32
LARGEST_SIDE = 128  # cells of a grid: that of shapes at 2048
MOST_CELLS = 1 << 18  # of an item: all of a grid of 64, or those of a surface in a larger one


@dataclass(frozen=True, slots=True)
class CellLists:
    """Cells of the items of a batch. `resolution` is the number of cells a side of the grid, None where it is unknown.

    `coords` are [M, 4], `counts` the number of each item's cells.
    """

    coords: torch.Tensor
    counts: tuple[int, ...]
    resolution: int | None = None

    @property
    def longest(self) -> int:
        return max(self.counts)

    @property
    def is_even(self) -> bool:
        """True where all items have as many cells."""
        return len(set(self.counts)) == 1

    def items(self) -> list[torch.Tensor]:
        """Return the cells [N, 3] of each item."""
        return list(torch.split(self.coords[:, 1:], list(self.counts)))

    def split(self, latent: torch.Tensor) -> list[torch.Tensor]:
        """Return the channels [N, C] of each item's cells of a latent [B, C, N, 1]."""
        return [item[:, :count, 0].T for item, count in zip(latent, self.counts, strict=True)]

    def padded(self, rows: torch.Tensor) -> torch.Tensor:
        """Return values [M, ...] of all cells as [B, N, ...], with zeros behind those of fewer."""
        if self.is_even:
            return rows.reshape(len(self.counts), -1, *rows.shape[1:])
        return torch.nn.utils.rnn.pad_sequence(list(torch.split(rows, list(self.counts))), batch_first=True)

    def occupied(self, device: torch.device) -> torch.Tensor | None:
        """Return True for cells and False for what pads them, bool [B, N]; None where nothing is padded."""
        if self.is_even:
            return None
        return torch.arange(self.longest, device=device) < torch.tensor(self.counts, device=device)[:, None]

    def empty_latent(self) -> torch.Tensor:
        return torch.zeros(len(self.counts), CHANNELS, self.longest, 1)


def cell_lists(coords: torch.Tensor, resolution: int | None = None) -> CellLists:
    """Return the cells of coordinates [M, 4]. Raises ValueError for none, and for items without any."""
    if coords.ndim != 2 or coords.shape[1] != 4:
        raise ValueError(f"cells: coordinates of another form; got {list(coords.shape)}, expected [cells, 4]")
    if not coords.shape[0]:
        raise ValueError(
            "voxel: the structure is empty; got 0 occupied voxels, expected some in each item of the batch"
        )
    order = coords[:, 0].long()
    if int(order.min()) < 0 or int((order.diff() < 0).sum()):
        raise ValueError("cells: their items are out of order; expected those of the first item first")
    counts = tuple(order.bincount().tolist())
    if not all(counts):
        raise ValueError(
            f"voxel: the structure of an item is empty; got {list(counts)} occupied voxels by item, expected some in "
            "each"
        )
    check_number(max(counts))
    return CellLists(coords.int(), counts, resolution)


def occupied_cells(grids: torch.Tensor) -> CellLists:
    """Return the occupied cells of grids [B, S, S, S], those other than 0.

    Raises ValueError for grids of another form, and for none or too many occupied cells, before they are listed.
    """
    side = grids.shape[-1]
    if grids.ndim != 4 or set(grids.shape[1:]) != {side} or side > LARGEST_SIDE:
        raise ValueError(
            f"voxel: no dense grid of a structure; got {list(grids.shape)}, expected a cube of at most {LARGEST_SIDE} "
            "voxels a side, as VaeDecodeStructureTrellis2 returns it"
        )
    check_number(int(grids.flatten(1).count_nonzero(1).max()))
    return cell_lists(grids.nonzero(), side)


def check_number(number: int) -> None:
    """Raise ValueError for more cells of an item than are sampled."""
    if number > MOST_CELLS:
        raise ValueError(f"voxel: too many cells to attend to; got {number} of an item, expected at most {MOST_CELLS}")


def joined(items: Sequence[torch.Tensor], resolution: int | None = None) -> CellLists:
    """Return cells [N, 3] of several items as lists. Raises ValueError for an item without any."""
    numbered = [torch.nn.functional.pad(cells, (1, 0), value=index) for index, cells in enumerate(items)]
    if not all(len(cells) for cells in items):
        raise ValueError("shape_latent: the shape of an item has no voxels; expected some in each")
    return cell_lists(torch.cat(numbered), resolution)
