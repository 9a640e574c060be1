"""Colors of a sparse grid of voxels, at points.

`N` voxels of the unit cube around the origin, `K` points, `C` channels.
"""

from __future__ import annotations

from itertools import product

import numpy as np
from numpy.typing import NDArray

from darkroom.engine.media.surfaces.neighbours import nearest_index

HALF = 0.5
LEAST_WEIGHT = 1e-8
GAMMA = 2.2
POINTS_AT_ONCE = 1 << 20

Floats = NDArray[np.float32]
Indices = NDArray[np.int64]


def vertex_colors(vertices: Floats, cells: Indices, colors: Floats, resolution: int) -> Floats:
    """Return the linear color [V, 3] of the voxel whose corner is nearest to each vertex [V, 3]."""
    corners = cells.astype(np.float32) * np.float32(1.0 / resolution) - np.float32(HALF)
    nearest = nearest_index(corners, vertices)
    linear: Floats = colors[nearest, :3].clip(0, 1) ** np.float32(GAMMA)
    return linear


def sampled(points: Floats, cells: Indices, colors: Floats, resolution: int) -> Floats:
    """Return values [K, C] of 0..1 between the up to eight voxels around each point that exist, else of the nearest.

    The value of a voxel is that of its middle.
    """
    keys = _keys(cells, resolution)
    order = np.argsort(keys)
    values = np.zeros((len(points), colors.shape[1]), np.float32)
    is_found = np.zeros(len(points), bool)
    for start in range(0, len(points), POINTS_AT_ONCE):
        part = slice(start, start + POINTS_AT_ONCE)
        values[part], is_found[part] = _between(points[part], keys[order], colors[order], resolution)
    if not is_found.all():
        middles = (cells.astype(np.float32) + np.float32(HALF)) / np.float32(resolution) - np.float32(HALF)
        values[~is_found] = colors[nearest_index(middles, points[~is_found])]
    return values.clip(0, 1)


def _keys(cells: Indices, resolution: int) -> Indices:
    return (cells[:, 0] * resolution + cells[:, 1]) * resolution + cells[:, 2]


def _between(points: Floats, keys: Indices, colors: Floats, resolution: int) -> tuple[Floats, NDArray[np.bool_]]:
    """Return weighted means [K, C] of the voxels around points, and the mask [K] of points that have any."""
    positions = (points + np.float32(HALF)) * np.float32(resolution) - np.float32(HALF)
    base = np.floor(positions).astype(np.int64)
    share = positions - base.astype(np.float32)
    total, weights = np.zeros((len(points), colors.shape[1]), np.float32), np.zeros((len(points), 1), np.float32)
    for step in product((0, 1), repeat=3):
        cell = base + np.array(step)
        found = np.searchsorted(keys, _keys(cell, resolution)).clip(max=len(keys) - 1)
        exists = ((cell >= 0) & (cell < resolution)).all(1) & (keys[found] == _keys(cell, resolution))
        weight = np.where(exists, np.where(np.array(step) == 1, share, 1 - share).prod(1), 0)[:, None]
        total += weight * colors[found]
        weights += weight
    means = (total / np.maximum(weights, LEAST_WEIGHT)).astype(np.float32)
    return means, weights[:, 0] > LEAST_WEIGHT
