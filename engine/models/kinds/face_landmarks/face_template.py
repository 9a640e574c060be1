"""A face's landmarks as files of MediaPipe's face landmarker have them: lines between them, and where they usually lie.

`V` vertices of the usual face, in centimetres, `K` those by which one's pose is found, each with a weight.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from darkroom.engine.models.kinds.face_landmarks.face_points import NUM_LANDMARKS

Edge = tuple[int, int]
Edges = frozenset[Edge]
CONTOURS = ("face_oval", "left_eye", "right_eye", "left_eyebrow", "right_eyebrow", "lips")
OTHERS = ("irises", "nose", "tesselation")
PARTS = (*CONTOURS, *OTHERS)
MOST_EDGES = 10_000  # of a part; the tesselation has 2547
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class FaceTemplate:
    """Edges by part, vertices [V, 3], indices [K] of vertices and landmarks, and weights [K]."""

    edges: Mapping[str, Edges]
    vertices: Floats
    indices: NDArray[np.int64]
    weights: Floats


def face_template(
    edges: Mapping[str, NDArray[np.int64]], vertices: Floats, indices: NDArray[np.int64], weights: Floats
) -> FaceTemplate:
    """Return the template of what a file has; `edges` are [N, 2] by part.

    Raises ValueError for landmarks that faces do not have, and for sizes that do not fit one another.
    """
    for name, pairs in edges.items():
        if pairs.ndim != 2 or pairs.shape[1] != 2 or len(pairs) > MOST_EDGES:
            raise ValueError(f"topology.{name}: got shape {list(pairs.shape)}, expected at most {MOST_EDGES} pairs")
        if pairs.size and not (pairs.min() >= 0 and pairs.max() < NUM_LANDMARKS and (pairs[:, 0] != pairs[:, 1]).all()):
            raise ValueError(f"topology.{name}: got other pairs than two of the {NUM_LANDMARKS} landmarks")
    if vertices.ndim != 2 or vertices.shape[1] != 3 or not indices.shape == weights.shape == (len(indices),):
        raise ValueError("canonical_vertices, procrustes_indices, procrustes_weights: sizes that do not fit")
    if len(indices) < 3 or not (indices.min() >= 0 and indices.max() < min(len(vertices), NUM_LANDMARKS)):
        raise ValueError("procrustes_indices: got others than those of three or more vertices that are landmarks")
    if not np.isfinite(vertices).all() or not (np.isfinite(weights).all() and (weights >= 0).all() and weights.any()):
        raise ValueError("canonical_vertices, procrustes_weights: got no finite numbers, or no weight above 0")
    sets = {name: frozenset((int(first), int(second)) for first, second in pairs) for name, pairs in edges.items()}
    return FaceTemplate(_with_unions(sets), vertices, indices, weights)


def _with_unions(sets: Mapping[str, Edges]) -> dict[str, Edges]:
    contours: Edges = frozenset().union(*(sets[name] for name in CONTOURS))
    return {**sets, "contours": contours, "all": contours | sets["irises"] | sets["nose"]}


def rings_of(edges: Edges) -> list[list[int]]:
    """Return the closed lines that edges make, each as its landmarks in order. Lines that branch end where they do."""
    neighbours: dict[int, list[int]] = {}
    for first, second in edges:
        for vertex, other in ((first, second), (second, first)):
            known = neighbours.setdefault(vertex, [])
            if other not in known:
                known.append(other)
    rings: list[list[int]] = []
    seen: set[int] = set()
    for start in neighbours:
        if start in seen:
            continue
        ring: list[int] = []
        current: int | None = start
        while current is not None:
            ring.append(current)
            seen.add(current)
            current = _next_of(neighbours[current], seen)
        rings.append(ring)
    return rings


def _next_of(neighbours: Sequence[int], seen: set[int]) -> int | None:
    return next((vertex for vertex in neighbours if vertex not in seen), None)
