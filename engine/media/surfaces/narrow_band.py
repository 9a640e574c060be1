"""Distances to a surface on a sparse grid of voxels that lie along it.

The grid divides a cube around the origin into `resolution` cells a side. `N` cells [N, 3], `P` points [P, 3], `F`
triangles [F, 3, 3], float32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from darkroom.engine.cancel import CancelToken
from darkroom.engine.media.surfaces.ray_tree import nearest_in_triangles

COARSEST = 32  # cells a side, at most, of the coarsest level
HALF_DIAGONAL = 0.87  # of a cell, rounded up
CANDIDATES = 8  # triangles with the nearest middles, of which the nearest counts
POINTS_AT_ONCE = 1 << 18
CELL_CORNERS = torch.tensor([[x, y, z] for z in (0, 1) for y in (0, 1) for x in (0, 1)])
BYTES_PER_CELL = 1200  # while its corners, edges and triangles are found

CheckFits = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Nearest:
    """Distances [P], nearest points [P, 3] and triangles [P] of points."""

    distances: torch.Tensor
    points: torch.Tensor
    faces: torch.Tensor


class NearTriangles:
    """Triangles [F, 3, 3], found by their middles: exact where triangles are about as large as their neighbours."""

    def __init__(self, triangles: torch.Tensor) -> None:
        from scipy.spatial import cKDTree  # type: ignore[import-untyped]

        self.triangles = triangles
        # balancing takes most of the time of building and finds the same
        self._tree = cKDTree(triangles.mean(1).numpy(), balanced_tree=False, compact_nodes=False)

    def nearest(self, points: torch.Tensor, cancel: CancelToken) -> Nearest:
        """Return the nearest points of the surface to points [P, 3]."""
        count = min(CANDIDATES, len(self.triangles))
        parts = [Nearest(torch.zeros(0), torch.zeros(0, 3), torch.zeros(0, dtype=torch.long))]
        for part in torch.split(points, POINTS_AT_ONCE):
            cancel.check()
            found = torch.from_numpy(self._tree.query(part.numpy(), k=count)[1]).reshape(-1, count)
            own = part[:, None].expand(-1, count, -1).reshape(-1, 3)
            on_surface = nearest_in_triangles(own, self.triangles[found.reshape(-1)]).reshape(-1, count, 3)
            squares = (part[:, None] - on_surface).square().sum(-1)
            best = squares.argmin(1, keepdim=True)
            parts.append(
                Nearest(
                    squares.gather(1, best)[:, 0].sqrt(),
                    on_surface.gather(1, best[..., None].expand(-1, 1, 3))[:, 0],
                    found.gather(1, best)[:, 0],
                )
            )
        return Nearest(
            torch.cat([part.distances for part in parts]),
            torch.cat([part.points for part in parts]),
            torch.cat([part.faces for part in parts]),
        )


@dataclass(frozen=True, slots=True)
class Grid:
    """A cube of a side `scale` around the origin, of `resolution` cells a side."""

    resolution: int
    scale: float

    @property
    def cell(self) -> float:
        return self.scale / self.resolution

    def position(self, index: torch.Tensor) -> torch.Tensor:
        """Return the positions [..., 3] of corners of cells, or of what lies between."""
        return (index.float() / self.resolution - 0.5) * self.scale


def cells_along(
    near: NearTriangles, grid: Grid, reach: float, check_fits: CheckFits, cancel: CancelToken
) -> torch.Tensor:
    """Return the cells [N, 3] whose middle is within `reach` and half a diagonal of the surface, found coarse to fine.

    `check_fits` is called with the bytes that the cells of a level take, and raises where these are too many.
    """
    halvings = max((grid.resolution - 1).bit_length() - COARSEST.bit_length() + 1, 0)
    count = -(-grid.resolution // (1 << halvings))
    check_fits(count**3 * BYTES_PER_CELL)
    cells = torch.cartesian_prod(*[torch.arange(count)] * 3)
    for size in (1 << left for left in range(halvings, -1, -1)):
        if size < 1 << halvings:
            check_fits(len(cells) * 8 * BYTES_PER_CELL)
            cells = (cells[:, None] * 2 + CELL_CORNERS).reshape(-1, 3)
            cells = cells[(cells * size < grid.resolution).all(1)]
        distances = near.nearest(grid.position((cells + 0.5) * size), cancel).distances
        cells = cells[distances < HALF_DIAGONAL * size * grid.cell + reach]
    return cells
