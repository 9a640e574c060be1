"""Triangles in the plane of a texture: which texel each covers.

`V` points [V, 2], `F` triangles [F, 3], `H W` texels, whose centres are at one half.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from darkroom.engine.cancel import CancelToken

PAIRS_AT_ONCE = 1 << 21  # of a triangle and a texel
MAX_LAYERS = 64  # of triangles' boxes over the whole texture; layouts without overlap have a few
LEAST_AREA, TOLERANCE = 1e-20, 1e-6
OUTSIDE_LOW, OUTSIDE_HIGH = -1e-4, 1.0001


@dataclass(frozen=True, slots=True)
class Texels:
    """The triangle of each texel [H, W], of the lowest index or -1, and the shares [H, W, 3] of its vertices."""

    faces: torch.Tensor
    shares: torch.Tensor

    @property
    def covered(self) -> torch.Tensor:
        """Mask [H, W] of texels that lie in a triangle."""
        return self.faces >= 0

    def values(self, faces: torch.Tensor, of_vertices: torch.Tensor) -> torch.Tensor:
        """Return values [K, C] of the covered texels, between those [V, C] of the vertices."""
        covered = self.covered
        corners = of_vertices[faces[self.faces[covered]]]  # [K, 3, C]
        return (self.shares[covered][:, :, None] * corners).sum(1)


def texels_of(points: torch.Tensor, faces: torch.Tensor, height: int, width: int, cancel: CancelToken) -> Texels:
    """Return the triangles of points in texels, x first.

    Raises ValueError for triangles that overlap too often: the work is that of the boxes around them.
    """
    corners = points[faces]  # [F, 3, 2]
    low = corners.amin(1).floor().long()
    high = corners.amax(1).ceil().long()
    limit = torch.tensor([width - 1, height - 1])
    low, high = torch.minimum(low.clamp(min=0), limit), torch.minimum(high.clamp(min=0), limit)
    sizes = high - low + 1
    counts = sizes[:, 0] * sizes[:, 1]
    counts[_double_area(corners).abs() <= LEAST_AREA] = 0
    allowed = MAX_LAYERS * (height * width + len(faces))
    if int(counts.sum()) > allowed:
        raise ValueError(
            f"uvs: triangles overlap too often; got {int(counts.sum())} texels in all, expected at most {allowed}"
        )
    best = torch.full((height * width,), len(faces))
    ends = counts.cumsum(0)
    for start in range(0, int(counts.sum()), PAIRS_AT_ONCE):
        cancel.check()
        pair = torch.arange(start, min(start + PAIRS_AT_ONCE, int(ends[-1])))
        triangle = torch.searchsorted(ends, pair, right=True)
        step = pair - (ends[triangle] - counts[triangle])
        x = low[triangle, 0] + step % sizes[triangle, 0]
        y = low[triangle, 1] + step // sizes[triangle, 0]
        inside = (_shares(corners[triangle], x + 0.5, y + 0.5) >= -TOLERANCE).all(1)
        best.scatter_reduce_(0, (y * width + x)[inside], triangle[inside], "amin")
    return _texels(best, corners, height, width)


def normalized_uvs(uvs: torch.Tensor) -> torch.Tensor:
    """Return positions [V, 2] on a texture where they lie in 0..1, else scaled to it by their larger side."""
    if not len(uvs):
        return uvs
    least, largest = uvs.amin(0), uvs.amax(0)
    extent = (largest - least).max()
    if (least.min() >= OUTSIDE_LOW and largest.max() <= OUTSIDE_HIGH) or extent <= 0:
        return uvs
    return (uvs - least) / extent


def grown(image: NDArray[np.float32], covered: NDArray[np.bool_]) -> NDArray[np.float32]:
    """Return an image [H, W, C] of which texels outside the mask have the value of a nearest one inside.

    Jump flooding (G. Rong, T.-S. Tan, 2006), in log H passes. An image without a covered texel stays as it is.
    """
    if not covered.any():
        return image
    height, width = covered.shape
    y, x = np.indices((height, width)).astype(np.int32)
    from_y, from_x = np.where(covered, y, -1), np.where(covered, x, -1)
    far = np.int64(1) << 40
    distance = np.where(covered, 0, far)
    step = 1 << max((max(height, width) - 1).bit_length() - 1, 0)
    while step:
        for dy, dx in ((a, b) for a in (-step, 0, step) for b in (-step, 0, step) if a or b):
            rows, columns = np.clip(y[:, 0] + dy, 0, height - 1), np.clip(x[0] + dx, 0, width - 1)
            near_y, near_x = from_y[rows][:, columns], from_x[rows][:, columns]
            found = np.where(near_y >= 0, (y - near_y).astype(np.int64) ** 2 + (x - near_x).astype(np.int64) ** 2, far)
            nearer = found < distance
            distance = np.where(nearer, found, distance)
            from_y, from_x = np.where(nearer, near_y, from_y), np.where(nearer, near_x, from_x)
        step //= 2
    filled: NDArray[np.float32] = image[from_y, from_x]
    return filled


def _double_area(corners: torch.Tensor) -> torch.Tensor:
    (x0, y0), (x1, y1), (x2, y2) = (corner.unbind(-1) for corner in corners.unbind(1))
    return (y1 - y2) * (x0 - x2) + (x2 - x1) * (y0 - y2)


def _shares(corners: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return barycentric coordinates [N, 3] of points in triangles [N, 3, 2]."""
    (x0, y0), (x1, y1), (x2, y2) = (corner.unbind(-1) for corner in corners.unbind(1))
    area = _double_area(corners)
    first = ((y1 - y2) * (x - x2) + (x2 - x1) * (y - y2)) / area
    second = ((y2 - y0) * (x - x2) + (x0 - x2) * (y - y2)) / area
    return torch.stack([first, second, 1.0 - first - second], dim=1)


def _texels(best: torch.Tensor, corners: torch.Tensor, height: int, width: int) -> Texels:
    covered = (best < len(corners)).nonzero()[:, 0]
    shares = torch.zeros(height * width, 3)
    shares[covered] = _shares(corners[best[covered]], covered % width + 0.5, covered // width + 0.5)
    faces = torch.where(best < len(corners), best, -1)
    return Texels(faces.reshape(height, width), shares.reshape(height, width, 3))
