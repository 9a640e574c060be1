"""Dual contouring: a vertex in each cell that a surface passes, joined across the edges that it crosses.

T. Ju et al., "Dual contouring of Hermite data", 2002; of several sheets in a cell S. Schaefer, T. Ju, J. Warren,
"Manifold dual contouring", 2007. `N` cells [N, 3], `K` corners of cells, `V` vertices. Values are below 0 inside.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from darkroom.engine.media.surfaces.narrow_band import CELL_CORNERS, Grid

EDGES = torch.tensor([[0, 1], [2, 3], [4, 5], [6, 7], [0, 2], [1, 3], [4, 6], [5, 7], [0, 4], [1, 5], [2, 6], [3, 7]])
# The edge of a cell from its least corner along each axis, the four cells around it, and which edge of theirs it is.
AROUND = (
    (0, ((0, 0, 0), (0, -1, 0), (0, -1, -1), (0, 0, -1)), (0, 1, 3, 2)),
    (4, ((0, 0, 0), (0, 0, -1), (-1, 0, -1), (-1, 0, 0)), (4, 6, 7, 5)),
    (8, ((0, 0, 0), (-1, 0, 0), (-1, -1, 0), (0, -1, 0)), (8, 9, 11, 10)),
)
PULL = 1e-2  # to the mean of crossings, where planes leave the vertex open
LEAST = 1e-20

NormalsAt = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Crossings:
    """Points at which the surface crosses the twelve edges of cells, their mask, and the signs of the eight corners."""

    grid: Grid
    cells: torch.Tensor  # [N, 3]
    is_outside: torch.Tensor  # [N, 8]
    crossed: torch.Tensor  # [N, 12]
    points: torch.Tensor  # [N, 12, 3]

    def middles(self) -> torch.Tensor:
        """Return the middles [N, 3] of cells."""
        return ((self.cells.float() + 0.5) / self.grid.resolution - 0.5) * self.grid.scale


def corners_of(cells: torch.Tensor, resolution: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the corners [K, 3] of cells, each once, and the index [N, 8] of those of each cell."""
    corners = (cells[:, None] + CELL_CORNERS).reshape(-1, 3)
    side = resolution + 1
    keys = (corners[:, 0] * side + corners[:, 1]) * side + corners[:, 2]
    unique, index = torch.unique(keys, return_inverse=True)
    split = torch.stack([unique // side // side, unique // side % side, unique % side], dim=1)
    return split, index.reshape(-1, 8)


def crossings(cells: torch.Tensor, values: torch.Tensor, grid: Grid, *, zero_is_inside: bool) -> Crossings:
    """Return the crossings of cells with values [N, 8] at their corners.

    With `zero_is_inside` an edge from 0 outwards counts, too.
    """
    first, second = values[:, EDGES[:, 0]], values[:, EDGES[:, 1]]
    crossed = (first > 0) != (second > 0) if zero_is_inside else first * second < 0
    span = first - second
    share = torch.where(span.abs() > LEAST, first / torch.where(span == 0, LEAST, span), 0).clamp(0, 1)[..., None]
    positions = grid.position(cells[:, None] + CELL_CORNERS)
    points = torch.lerp(positions[:, EDGES[:, 0]], positions[:, EDGES[:, 1]], share)
    return Crossings(grid, cells, values > 0, crossed, points)


def contoured(found: Crossings, normals_at: NormalsAt | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Return vertices [N, 3], one a cell, and triangles [F, 3], facing outwards.

    A vertex is the mean of the crossings of its cell; with normals of the surface at points it is where the planes
    through them meet, if that is within the cell.
    """
    weights = found.crossed.float()[..., None]
    means = (found.points * weights).sum(1) / weights.sum(1).clamp(min=1)
    vertices = torch.where(found.crossed.any(1)[:, None], means, found.middles())
    if normals_at is not None and bool(found.crossed.any()):
        vertices = torch.where(found.crossed.any(1)[:, None], _where_planes_meet(found, means, normals_at), vertices)
    return vertices, _joined(found, torch.arange(len(found.cells))[:, None].expand(-1, 12))


def contoured_sheets(found: Crossings) -> tuple[torch.Tensor, torch.Tensor]:
    """Return vertices [V, 3], one for each sheet of the surface in a cell, and triangles [F, 3], facing outwards."""
    num_sheets, sheet_of_edge = _sheets()
    pattern = (found.is_outside.long() << torch.arange(8)).sum(1)
    counts = num_sheets[pattern]
    first = counts.cumsum(0) - counts
    sheets = sheet_of_edge[pattern]
    numbers = torch.where(found.crossed & (sheets >= 0), first[:, None] + sheets, -1)  # [N, 12]
    kept = numbers >= 0
    total = torch.zeros(int(counts.sum()), 3).index_add_(0, numbers[kept], found.points[kept])
    weights = torch.bincount(numbers[kept], minlength=len(total)).float()[:, None]
    middles = found.middles().repeat_interleave(counts, dim=0)
    return torch.where(weights > 0, total / weights.clamp(min=1), middles), _joined(found, numbers)


def _where_planes_meet(found: Crossings, means: torch.Tensor, normals_at: NormalsAt) -> torch.Tensor:
    """Return the points [N, 3] nearest to the planes through crossings, the means where these are outside the cell."""
    normals = torch.zeros_like(found.points)
    normals[found.crossed] = normals_at(found.points[found.crossed])
    form = torch.einsum("nei,nej->nij", normals, normals) + PULL * torch.eye(3)
    offset = torch.einsum("ne,nei->ni", (normals * found.points).sum(-1), normals) + PULL * means
    met = torch.linalg.solve(form, offset[..., None])[..., 0]
    low, high = found.grid.position(found.cells), found.grid.position(found.cells + 1)
    is_within = ((met >= low) & (met <= high)).all(1, keepdim=True)
    return torch.where(is_within, met, means)


def _joined(found: Crossings, numbers: torch.Tensor) -> torch.Tensor:
    """Return two triangles for each crossed edge with four cells. `numbers` [N, 12] has the vertex at each edge."""
    cells, sides = found.cells, found.cells.amax(0) + 2
    keys = _keys(cells, sides)
    order = keys.argsort()
    ordered = keys[order]
    triangles = [torch.zeros(0, 3, dtype=torch.long)]
    for edge, steps, edges_there in AROUND:
        owners = found.crossed[:, edge].nonzero()[:, 0]
        wanted = _keys(cells[owners, None] + torch.tensor(steps), sides)
        position = torch.searchsorted(ordered, wanted).clamp(max=len(ordered) - 1)
        around = order[position]
        corners = numbers[around, torch.tensor(edges_there)]  # [O, 4]
        whole = ((ordered[position] == wanted) & (corners >= 0)).all(1)
        a, b, c, d = corners[whole].unbind(1)
        turned = found.is_outside[owners[whole], EDGES[edge, 0]][:, None]
        for left, right in ((b, c), (c, d)):
            triangles.append(torch.where(turned, torch.stack([a, right, left], 1), torch.stack([a, left, right], 1)))
    return torch.cat(triangles)


def _keys(cells: torch.Tensor, sides: torch.Tensor) -> torch.Tensor:
    return (cells[..., 0] * sides[1] + cells[..., 1]) * sides[2] + cells[..., 2]


def _sheets() -> tuple[torch.Tensor, torch.Tensor]:
    """Return, by the signs of corners as bits, the number [256] of sheets in a cell, and each edge's [256, 12] or -1.

    Edges are of one sheet where they lie between the same two sets of corners that are joined by edges.
    """
    counts, sheets = torch.zeros(256, dtype=torch.long), torch.full((256, 12), -1)
    edges = [(int(a), int(b)) for a, b in EDGES]
    for pattern in range(256):
        group = list(range(8))
        for _ in range(3):  # no two corners are farther apart
            for a, b in edges:
                if (pattern >> a & 1) == (pattern >> b & 1):
                    group[a] = group[b] = min(group[a], group[b])
        between: dict[tuple[int, int], int] = {}
        for index, (a, b) in enumerate(edges):
            if (pattern >> a & 1) != (pattern >> b & 1):
                inner, outer = (a, b) if pattern >> b & 1 else (b, a)
                sheets[pattern, index] = between.setdefault((group[inner], group[outer]), len(between))
        counts[pattern] = len(between)
    return counts, sheets
