"""Surfaces at which grids cross a level, as triangles (S. Gibson, "Constrained elastic surface nets", 1998).

`x y z` points of a grid, `A` cells that the surface passes, `V` vertices and `F` triangles.
"""

from __future__ import annotations

from itertools import combinations

import torch

CORNERS = tuple((x, y, z) for z in (0, 1) for y in (0, 1) for x in (0, 1))
EDGES = tuple(
    (first, second)
    for first, second in combinations(range(8), 2)
    if sum(a != b for a, b in zip(CORNERS[first], CORNERS[second], strict=True)) == 1
)
CELLS_AT_ONCE = 1 << 18
FLAT = 1e-12


def iso_surface(values: torch.Tensor, level: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return vertices [V, 3] in steps of the grid [x, y, z], and triangles [F, 3] that face where values are smaller.

    A cell that the surface passes has one vertex, the mean of where it crosses the edges; each crossed edge of the grid
    has two triangles between its four cells. The surface is open where it leaves the grid.
    """
    inside = values >= level
    corners = torch.stack([_shifted(inside, corner) for corner in CORNERS])
    passed = corners.any(0) & ~corners.all(0)
    cells = passed.nonzero()
    if not len(cells):
        return torch.zeros(0, 3), torch.zeros(0, 3, dtype=torch.long)
    numbers = torch.full(passed.shape, -1)
    numbers[passed] = torch.arange(len(cells))
    vertices = torch.cat([_vertices(values, part, level) for part in torch.split(cells, CELLS_AT_ONCE)])
    return vertices, torch.cat([_triangles(inside, numbers, axis) for axis in range(3)])


def _shifted(grid: torch.Tensor, corner: tuple[int, int, int]) -> torch.Tensor:
    """Return the values [x - 1, y - 1, z - 1] at one corner of all cells."""
    x, y, z = (slice(step, size - 1 + step) for step, size in zip(corner, grid.shape, strict=True))
    return grid[x, y, z]


def _vertices(values: torch.Tensor, cells: torch.Tensor, level: float) -> torch.Tensor:
    places = torch.tensor(CORNERS)
    at = cells[:, None] + places
    own = values[at[..., 0], at[..., 1], at[..., 2]]  # [A, 8]
    first, second = torch.tensor(EDGES).T
    start, end = own[:, first], own[:, second]  # [A, 12]
    crossed = ((start >= level) != (end >= level)).float()[..., None]
    rise = end - start
    share = torch.where(rise.abs() > FLAT, (level - start) / rise, 0.5).clamp(0, 1)[..., None]
    crossings = torch.lerp(places[first].float(), places[second].float(), share)
    return cells.float() + (crossings * crossed).sum(1) / crossed.sum(1).clamp(min=1)


def _triangles(inside: torch.Tensor, numbers: torch.Tensor, axis: int) -> torch.Tensor:
    """Return the triangles around crossed edges along one axis, between cells that all have vertices."""
    across, aside = (axis + 1) % 3, (axis + 2) % 3
    grid, cells = inside.movedim((axis, across, aside), (0, 1, 2)), numbers.movedim((axis, across, aside), (0, 1, 2))
    start, end = grid[:-1, 1:-1, 1:-1], grid[1:, 1:-1, 1:-1]
    around = torch.stack([cells[:, :-1, :-1], cells[:, 1:, :-1], cells[:, 1:, 1:], cells[:, :-1, 1:]], dim=-1)
    is_whole = (start != end) & (around >= 0).all(-1)
    first, second, opposite, last = around[is_whole].unbind(1)
    starts_inside = start[is_whole]
    before, after = torch.where(starts_inside, second, last), torch.where(starts_inside, last, second)
    return torch.cat([torch.stack([first, before, opposite], 1), torch.stack([first, opposite, after], 1)])
