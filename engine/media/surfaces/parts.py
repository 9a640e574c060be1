"""Parts of a mesh that are not connected: those worth keeping. `V` vertices, `F` triangles [F, 3], `C` parts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from darkroom.engine.cancel import CancelToken
from darkroom.engine.media.surfaces.edges import Indices
from darkroom.engine.media.surfaces.neighbours import connected

LEAST = 1e-20
MAX_TESTS = 1 << 34  # parts times triangles of the largest: minutes of a core

Floats = NDArray[np.float32]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class KeptParts:
    """Rules for the parts that are kept; the largest one always is."""

    least_share: float = 0.0
    """Least number of triangles, as a share of the largest part's."""
    no_inverted: bool = False
    """True leaves out parts of negative volume."""
    no_enclosed: bool = False
    """True leaves out parts within the bounding box of the largest, or with their middle in its inside."""


def parts_of(faces: Indices, num_vertices: int) -> Indices:
    """Return the part [F] of each triangle, numbered from 0 in the order of their first vertices."""
    joined = np.concatenate([faces[:, :2], faces[:, 1:]])
    of_vertices = connected(num_vertices, joined[:, 0], joined[:, 1])
    return np.unique(of_vertices[faces[:, 0]], return_inverse=True)[1].reshape(-1)


def kept_faces(vertices: Floats, faces: Indices, rules: KeptParts, cancel: CancelToken) -> Indices:
    """Return the triangles of the parts that are kept. Raises ValueError for too many that may be enclosed."""
    if not len(faces):
        return faces
    part = parts_of(faces, len(vertices))
    counts = np.bincount(part)
    largest = int(counts.argmax())
    kept: Mask = counts >= max(1, int(counts[largest] * rules.least_share))
    if rules.no_inverted:
        a, b, c = (vertices[faces[:, corner]] for corner in range(3))
        kept &= np.bincount(part, (a * np.cross(b, c)).sum(1)) >= 0
    kept[largest] = True
    if rules.no_enclosed:
        kept &= ~_enclosed(vertices[faces], part, kept, largest, cancel)
    return faces[kept[part]]


def _enclosed(triangles: Floats, part: Indices, kept: Mask, largest: int, cancel: CancelToken) -> Mask:
    """Return the mask [C] of parts within the largest one, for triangles [F, 3, 3] and the parts left."""
    count = len(kept)
    low, high = np.full((count, 3), np.inf, np.float32), np.full((count, 3), -np.inf, np.float32)
    np.minimum.at(low, part, triangles.min(1))
    np.maximum.at(high, part, triangles.max(1))
    enclosed: Mask = ((low >= low[largest]) & (high <= high[largest])).all(1)
    enclosed[largest] = False
    totals = np.stack([np.bincount(part, triangles.mean(1)[:, axis]) for axis in range(3)], 1)
    middles = totals / np.bincount(part)[:, None]
    outer = triangles[part == largest]
    candidates = (kept & ~enclosed & (np.arange(count) != largest)).nonzero()[0]
    if len(candidates) * len(outer) > MAX_TESTS:
        found = f"{len(candidates)} parts beside one of {len(outer)} triangles"
        raise ValueError(f"mesh: too many parts to find the enclosed ones; got {found}, expected fewer or no such test")
    for index in candidates:
        cancel.check()
        enclosed[index] = _is_inside(middles[index].astype(np.float32), outer)
    return enclosed


def _is_inside(point: Floats, triangles: Floats) -> bool:
    """Return True where a ray from a point [3] along x meets triangles [F, 3, 3] an odd number of times."""
    y, z = triangles[:, :, 1] - point[1], triangles[:, :, 2] - point[2]
    areas = np.stack([y[:, a] * z[:, b] - z[:, a] * y[:, b] for a, b in ((1, 2), (2, 0), (0, 1))], 1)
    total = areas.sum(1)
    meets = ((areas >= 0).all(1) | (areas <= 0).all(1)) & (np.abs(total) > LEAST)
    at = (areas[meets] * triangles[meets, :, 0]).sum(1) / total[meets]
    return bool((at > point[0]).sum() % 2)
