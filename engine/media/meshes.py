"""Surfaces of grids of voxels, as triangles.

`V` corners [V, 3] in -1..1, x first, `F` triangles [F, 3] of indices of corners.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn import functional

# The six neighbours of a voxel (z, y, x), and the corners of the face towards each, counter-clockwise from outside.
FACES = (
    ((0, 0, 1), ((0, 0, 1), (0, 1, 1), (1, 1, 1), (1, 0, 1))),
    ((0, 0, -1), ((0, 0, 0), (1, 0, 0), (1, 1, 0), (0, 1, 0))),
    ((0, 1, 0), ((0, 1, 0), (1, 1, 0), (1, 1, 1), (0, 1, 1))),
    ((0, -1, 0), ((0, 0, 0), (0, 0, 1), (1, 0, 1), (1, 0, 0))),
    ((1, 0, 0), ((1, 0, 1), (1, 1, 1), (1, 1, 0), (1, 0, 0))),
    ((-1, 0, 0), ((0, 1, 0), (0, 1, 1), (0, 0, 1), (0, 0, 0))),
)
CORNERS = tuple((z, y, x) for x in (0, 1) for y in (0, 1) for z in (0, 1))  # of a cell
EDGES = ((0, 1), (0, 2), (0, 4), (1, 3), (1, 5), (2, 3), (2, 6), (3, 7), (4, 5), (4, 6), (5, 7), (6, 7))
PLANES = ((0, 1, (2, 1.0)), (0, 2, (1, -1.0)), (1, 2, (0, 1.0)))  # two axes, and their normal with its sign

Surface = tuple[torch.Tensor, torch.Tensor]  # corners [V, 3], float32, and triangles [F, 3], int64


def _inside(voxels: torch.Tensor, threshold: float) -> torch.Tensor:
    """Return the mask of voxels above the threshold. Raises ValueError where none is, or all are in a grid of one."""
    inside = voxels > threshold
    if not inside.any():
        raise ValueError(
            f"voxel: nothing is above the threshold; got at most {float(voxels.max()):.3g}, expected more than "
            f"{threshold:g}"
        )
    return inside


def _centred(corners: torch.Tensor, largest: int) -> torch.Tensor:
    """Return corners (z, y, x) in voxels as (x, y, z) around the middle of the grid's largest side, -1..1 along it."""
    half = largest / 2
    return torch.fliplr((corners.float() - half) / half)


def cubes(voxels: torch.Tensor, threshold: float) -> Surface:
    """Return the faces between voxels [z, y, x] above the threshold and others, two triangles each.

    Corners are not shared. Raises ValueError where no voxel is above it.
    """
    inside = _inside(voxels, threshold)
    padded = functional.pad(inside, (1, 1, 1, 1, 1, 1))
    depth, height, width = voxels.shape
    corners, triangles, count = [], [], 0
    for (z, y, x), face in FACES:
        neighbour = padded[1 + z : 1 + z + depth, 1 + y : 1 + y + height, 1 + x : 1 + x + width]
        exposed = (inside & ~neighbour).nonzero()
        corners.append((exposed[:, None] + torch.tensor(face)).reshape(-1, 3))
        first = torch.arange(count, count + 4 * len(exposed), 4)[:, None]
        triangles += [first + torch.tensor([0, 1, 2]), first + torch.tensor([0, 2, 3])]
        count += 4 * len(exposed)
    return _centred(torch.cat(corners), max(voxels.shape)), torch.cat(triangles)


def surface_net(voxels: torch.Tensor, threshold: float) -> Surface:
    """Return the surface at which voxels [z, y, x] cross the threshold (Gibson 1998, "Surface Nets").

    A cell that the surface passes has one corner, the middle of where its edges are crossed; four such neighbours
    share two triangles. The grid is closed at its near sides. Raises ValueError where no voxel is above the threshold.
    """
    _inside(voxels, threshold)
    padded = functional.pad(voxels, (1, 1, 1, 1, 1, 1))
    depth, height, width = voxels.shape
    values = torch.stack([padded[z : z + depth, y : y + height, x : x + width] for z, y, x in CORNERS], dim=-1)
    signs = values > threshold
    cells = (signs.any(-1) & ~signs.all(-1)).nonzero()  # [A, 3]
    where = (cells[:, 0], cells[:, 1], cells[:, 2])
    values, signs = values[where], signs[where]
    order, corners = _corners_of_cells(values, signs, threshold)
    corners = (corners + cells.float())[order]
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order))
    triangles = _joined(cells, rank, _slopes(signs), voxels.shape)
    return _centred(corners, max(voxels.shape)), triangles


def _corners_of_cells(values: torch.Tensor, signs: torch.Tensor, threshold: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the order of cells by their first crossed edge, and the corner [A, 3] within each."""
    places = torch.tensor(CORNERS, dtype=torch.float32)
    total, number = torch.zeros(len(values), 3), torch.zeros(len(values), 1)
    first_edge = torch.full((len(values),), len(EDGES))
    for index, (start, end) in enumerate(EDGES):
        crossed = signs[:, start] != signs[:, end]
        share = (threshold - values[crossed, start]) / (values[crossed, end] - values[crossed, start])
        total[crossed] += places[start] + share[:, None] * (places[end] - places[start])
        number[crossed] += 1
        first_edge[crossed & (first_edge == len(EDGES))] = index
    return first_edge.argsort(stable=True), total / number


def _slopes(signs: torch.Tensor) -> torch.Tensor:
    """Return the direction [A, 3] from the outer corners of each cell to the inner ones."""
    places, inner = torch.tensor(CORNERS, dtype=torch.float32), signs.float()
    outer = 1.0 - inner
    return inner @ places / inner.sum(1, keepdim=True) - outer @ places / outer.sum(1, keepdim=True)


def _joined(cells: torch.Tensor, rank: torch.Tensor, slopes: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
    """Return the triangles [F, 3] that join corners of four neighbouring cells, which face outwards."""
    numbers = torch.full([size + 1 for size in sizes], -1)
    numbers[cells[:, 0], cells[:, 1], cells[:, 2]] = rank
    triangles = []
    for first_axis, second_axis, (normal, sign) in PLANES:
        steps = torch.zeros(4, 3, dtype=torch.long)
        steps[1, first_axis] = steps[2, second_axis] = steps[3, first_axis] = steps[3, second_axis] = 1
        around = cells[:, None] + steps
        quads = numbers[around[..., 0], around[..., 1], around[..., 2]]  # [A, 4]
        whole = (quads >= 0).all(1)
        a, b, c, d = quads[whole].unbind(1)
        faces_along = (slopes[whole, normal] * sign > 0)[:, None, None]
        along = torch.stack([torch.stack([a, b, d], 1), torch.stack([a, d, c], 1)], 1)
        against = torch.stack([torch.stack([a, d, b], 1), torch.stack([a, c, d], 1)], 1)
        triangles.append(torch.where(faces_along, along, against).flatten(0, 1))
    return torch.cat(triangles)
