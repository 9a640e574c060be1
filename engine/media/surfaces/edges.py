"""Edges of triangles. `V` vertices, `F` triangles [F, 3], `E` edges."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Edges:
    """The edges of a mesh, each once, in the order of their vertices.

    `ends` [E, 2] has the lower vertex first, `num_faces` [E] counts the triangles at each edge. `of_faces` [F, 3] is
    the edge from each corner of a triangle to its next one.
    """

    ends: Indices
    num_faces: Indices
    of_faces: Indices

    def is_rim(self, num_vertices: int) -> NDArray[np.bool_]:
        """Return the mask [V] of vertices at an edge of a single triangle."""
        mask = np.zeros(num_vertices, bool)
        mask[self.ends[self.num_faces == 1]] = True
        return mask


def edges_of(faces: Indices, num_vertices: int) -> Edges:
    """Return the edges of triangles [F, 3] with indices below `num_vertices`."""
    following = np.roll(faces, -1, axis=1)
    keys = np.minimum(faces, following) * num_vertices + np.maximum(faces, following)
    unique, inverse, counts = np.unique(keys, return_inverse=True, return_counts=True)
    ends = np.stack([unique // num_vertices, unique % num_vertices], axis=1)
    return Edges(ends, counts, inverse.reshape(-1, 3))


def without_degenerate(faces: Indices) -> Indices:
    """Return triangles [F, 3] that have three vertices, the first of those with the same three."""
    a, b, c = faces.T
    whole = faces[(a != b) & (b != c) & (c != a)]
    low, middle, high = np.sort(whole, axis=1).T
    order = np.lexsort((high, middle, low))
    is_first = np.ones(len(whole), bool)
    is_first[1:] = (np.diff(low[order]) != 0) | (np.diff(middle[order]) != 0) | (np.diff(high[order]) != 0)
    distinct: Indices = whole[np.sort(order[is_first])]
    return distinct


def compacted(faces: Indices, num_vertices: int) -> tuple[Indices, Indices]:
    """Return the vertices [N] that triangles [F, 3] use, in order, and the triangles with indices of these."""
    used = np.zeros(num_vertices, bool)
    used[faces] = True
    return used.nonzero()[0], (np.cumsum(used) - 1)[faces]
