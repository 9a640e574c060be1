"""Changes to a triangulation that contouring leaves rough. `V` vertices [V, 3], `F` triangles [F, 3]."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from darkroom.engine.cancel import CancelToken
from darkroom.engine.media.surfaces.edges import Indices, edges_of

SHRINKING, GROWING = 0.5, -0.53  # steps towards the mean of the neighbours and back
FEWEST_NEIGHBOURS = 3

Floats = NDArray[np.float32]


def smoothed(vertices: torch.Tensor, faces: Indices, rounds: int, cancel: CancelToken) -> torch.Tensor:
    """Return vertices moved towards the mean of their neighbours and back, which preserves the volume.

    G. Taubin, "A signal processing approach to fair surface design", 1995.
    """
    starts, ends = torch.from_numpy(edges_of(faces, len(vertices)).ends).unbind(1)
    counts = torch.bincount(torch.cat([starts, ends]), minlength=len(vertices))[:, None]
    for _ in range(rounds):
        cancel.check()
        for share in (SHRINKING, GROWING):
            total = torch.zeros_like(vertices).index_add_(0, starts, vertices[ends])
            total.index_add_(0, ends, vertices[starts])
            vertices = vertices + share * (total / counts.clamp(min=1) - vertices) * (counts > 0)
    return vertices


def poles(faces: Indices, num_vertices: int) -> Indices:
    """Return pairs [N, 2] of neighbours that have three neighbours each, off the rim; no vertex is in two pairs."""
    edges = edges_of(faces, num_vertices)
    is_pole = np.bincount(edges.ends.ravel(), minlength=num_vertices) == FEWEST_NEIGHBOURS
    is_pole &= ~edges.is_rim(num_vertices)
    used: set[int] = set()
    pairs = []
    for start, end in edges.ends[is_pole[edges.ends].all(1)].tolist():
        if start not in used and end not in used:
            used.update((start, end))
            pairs.append((start, end))
    return np.array(pairs, np.int64).reshape(-1, 2)


def merged_pairs(values: torch.Tensor, faces: Indices, pairs: Indices) -> tuple[torch.Tensor, Indices]:
    """Return values [V, C] with means at the first of each pair [N, 2], and the triangles that have three vertices."""
    first, second = torch.from_numpy(pairs).unbind(1)
    joined = values.clone()
    joined[first] = (values[first] + values[second]) / 2
    target = np.arange(len(values))
    target[pairs[:, 1]] = pairs[:, 0]
    a, b, c = target[faces].T
    return joined, target[faces][(a != b) & (b != c) & (a != c)]
