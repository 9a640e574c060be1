"""Surfaces of cells that hold a corner each, as triangles: flexible dual grids (TRELLIS.2's "O-Voxel").

A cell says of the three edges that start in its corner furthest from 0 whether the surface crosses them; the corners of
the four cells around such an edge make a quad. `N` cells, `F` triangles.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from darkroom.engine.families.trellis2.sparse_layers import CellIndex, keys_of

MARGIN = 0.5  # of a cell's side, by which its corner may lie outside
# The cells around an edge along x, y and z, relative to the cell that it belongs to.
AROUND = (
    ((0, 0, 0), (0, 0, 1), (0, 1, 1), (0, 1, 0)),
    ((0, 0, 0), (1, 0, 0), (1, 0, 1), (0, 0, 1)),
    ((0, 0, 0), (0, 1, 0), (1, 1, 0), (1, 0, 0)),
)
SPLITS = ((0, 1, 2, 0, 2, 3), (0, 1, 3, 3, 1, 2))  # of a quad, along either diagonal
EDGES_AT_ONCE = 1 << 22


def dual_grid_mesh(cells: torch.Tensor, surface: torch.Tensor, resolution: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the corners [N, 3] of cells [N, 3], within -0.5..0.5 and float32, and triangles [F, 3], int32.

    `surface` [N, 7] are a decoder's channels, `resolution` the cells a side of the grid. Cells behind a far side of the
    grid are looked for where their keys point to, at the near side of the next row, as the original does.
    """
    offsets = (1 + 2 * MARGIN) * surface[:, :3].sigmoid() - MARGIN
    corners = (cells.float() + offsets.float()) * (1.0 / resolution) - 0.5
    weights = functional.softplus(surface[:, 6])
    index = CellIndex(keys_of(cells, resolution))
    owners, axes = (surface[:, 3:6] > 0).nonzero(as_tuple=True)
    around = torch.tensor(AROUND, device=cells.device)
    splits = torch.tensor(SPLITS, device=cells.device)
    triangles = [torch.empty(0, 3, dtype=torch.int32, device=cells.device)]
    for part, axis in zip(torch.split(owners, EDGES_AT_ONCE), torch.split(axes, EDGES_AT_ONCE), strict=True):
        quads = index.find(keys_of(cells[part].long()[:, None] + around[axis], resolution))  # [E, 4]
        quads = quads[(quads >= 0).all(dim=1)]
        a, b, c, d = weights[quads].unbind(1)
        chosen = torch.where((a * c > b * d)[:, None], quads[:, splits[0]], quads[:, splits[1]])
        triangles.append(chosen.view(-1, 3).int())
    return corners, torch.cat(triangles)
