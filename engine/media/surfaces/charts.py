"""The layout of a mesh on its texture as an image: charts in colors, with their outlines."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from darkroom.engine.cancel import CancelToken
from darkroom.engine.media.surfaces.neighbours import connected
from darkroom.engine.media.surfaces.texels import texels_of

BACKGROUND, OUTLINE = 0.13, 0.0
TAB20 = (  # matplotlib's palette of this name
    "1f77b4 aec7e8 ff7f0e ffbb78 2ca02c 98df8a d62728 ff9896 9467bd c5b0d5 "
    "8c564b c49c94 e377c2 f7b6d2 7f7f7f c7c7c7 bcbd22 dbdb8d 17becf 9edae5"
)
ORDER_SEED = 42
STEPS_AT_ONCE = 1 << 22

Indices = NDArray[np.int64]


def atlas_of(uvs: torch.Tensor, faces: torch.Tensor, side: int, cancel: CancelToken) -> torch.Tensor:
    """Return an image [side, side, 3] of positions [V, 2] of 0..1 and triangles [F, 3], v downwards.

    A chart is a set of triangles that share edges. Raises ValueError for triangles that overlap too often.
    """
    image = torch.full((side, side, 3), BACKGROUND)
    if not len(faces):
        return image
    points = uvs.clamp(0.0, 1.0) * (side - 1)
    corners = faces.numpy()
    keys, first, counts, order = _edges(corners)
    texels = texels_of(points, faces, side, side, cancel)
    colors = torch.from_numpy(_colors(_charts(len(corners), first, counts, order)))
    image[texels.covered] = colors[texels.faces[texels.covered]]
    outline = keys[first[counts == 1]]
    num_vertices = int(corners.max()) + 1
    _draw(image, points.numpy(), outline // num_vertices, outline % num_vertices, cancel)
    return image


def _edges(faces: Indices) -> tuple[Indices, Indices, Indices, Indices]:
    """Return sorted keys of edges, where each edge begins, its number of triangles, and the order of the sort."""
    ends = np.stack([faces, np.roll(faces, -1, axis=1)], axis=-1).reshape(-1, 2)
    keys = ends.min(1) * (int(faces.max()) + 1) + ends.max(1)
    order = np.argsort(keys, kind="stable")
    _, first, counts = np.unique(keys[order], return_index=True, return_counts=True)
    return keys[order], first, counts, order


def _charts(num_faces: int, first: Indices, counts: Indices, order: Indices) -> Indices:
    owners = order // 3
    return connected(num_faces, owners[np.repeat(first, counts)], owners)


def _colors(charts: Indices) -> NDArray[np.float32]:
    """Return the color [F, 3] of each triangle's chart, in a shuffled order that is always the same."""
    palette = np.array([list(bytes.fromhex(color)) for color in TAB20.split()]).astype(np.float32) / np.float32(255)
    order = np.random.RandomState(ORDER_SEED).permutation(int(charts.max()) + 1)
    chosen: NDArray[np.float32] = palette[order[charts] % len(palette)]
    return chosen


def _draw(
    image: torch.Tensor, points: NDArray[np.float32], starts: Indices, ends: Indices, cancel: CancelToken
) -> None:
    """Draw lines between points, of as many pixels as their longer side."""
    sizes = np.abs(points[ends] - points[starts]).max(1)
    steps = sizes.astype(np.int64) + 1
    is_line = steps > 1
    starts, ends, steps = starts[is_line], ends[is_line], steps[is_line]
    bounds = np.cumsum(steps)
    for start in range(0, int(steps.sum()), STEPS_AT_ONCE):
        cancel.check()
        index = np.arange(start, min(start + STEPS_AT_ONCE, int(bounds[-1])))
        line = np.searchsorted(bounds, index, side="right")
        number, last = index - (bounds[line] - steps[line]), steps[line] - 1
        share = np.where(number == last, 1.0, number * (1.0 / last))[:, None]
        begin = points[starts[line]].astype(np.float64)
        x, y = (begin + (points[ends[line]] - points[starts[line]]) * share).astype(np.int64).T
        image[y, x] = OUTLINE
