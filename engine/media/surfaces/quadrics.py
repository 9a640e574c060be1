"""Quadrics: squared distances to planes and lines, summed at vertices (Garland and Heckbert 1997).

`V` vertices [V, 3], `F` triangles, `E` edges, `Q` quadrics. A quadric [4, 4] is a form of (x, y, z, 1), float64.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from darkroom.engine.media.surfaces.edges import Edges, Indices

RIM_WEIGHT = 1000.0  # of planes that hold the rim of an open mesh
REGULARIZED = 1e-3  # weight of the middle of an edge where planes leave the best point open, as a share of the planes'
MOST_WANDERING = 2.0  # lengths of an edge that its best point may be away from it
LEAST = 1e-20
UPPER = tuple((row, column) for column in range(4) for row in range(column))

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Placement:
    """Position of the vertex that an edge becomes: its middle, or the best point of its quadric."""

    at_best_point: bool = False
    line_weight: float = 0.0
    """Weight of the distance to the lines of edges, which preserves ridges."""
    feature_weight: float = 0.0
    """Weight of planes that hold edges of more than `feature_degrees` between their triangles."""
    feature_degrees: float = 30.0
    on_edge: bool = True
    """True where the best point is moved to the nearest point of the edge."""


def unit_normals(vertices: Floats, faces: Indices) -> Floats:
    """Return the normals [F, 3] of triangles, 0 for those without area."""
    a, b, c = (vertices[faces[:, corner]] for corner in range(3))
    return _unit(np.cross(b - a, c - a))


def vertex_quadrics(vertices: Floats, faces: Indices, edges: Edges, placement: Placement) -> Floats:
    """Return the quadrics [V, 4, 4] of the planes of triangles, of rims, and of what the placement adds."""
    normals = unit_normals(vertices, faces)
    total = np.zeros((len(vertices), 4, 4))
    planes = _planes(normals, vertices[faces[:, 0]])
    for corner in range(3):
        _add(total, faces[:, corner], planes)
    for corner in range(3):
        own = edges.of_faces[:, corner]
        weights = np.where(edges.num_faces[own] == 1, RIM_WEIGHT, 0.0)
        if placement.feature_weight:
            weights += np.where(_is_feature(edges, normals, placement)[own], placement.feature_weight, 0.0)
        _add_sides(total, vertices, faces, normals, corner, weights)
    if placement.line_weight:
        lines = _lines(vertices, edges) * placement.line_weight
        for end in (0, 1):
            _add(total, edges.ends[:, end], lines)
    for row, column in UPPER:
        total[:, row, column] = total[:, column, row]
    return total


def placed(vertices: Floats, ends: Indices, quadrics: Floats, is_rim: NDArray[np.bool_], how: Placement) -> Floats:
    """Return the position [E, 3] that each edge [E, 2] becomes. A vertex of a rim keeps its position where one is."""
    first, second = vertices[ends[:, 0]], vertices[ends[:, 1]]
    middle = (first + second) / 2
    if how.at_best_point:
        middle = _best_points(first, second, quadrics, on_edge=how.on_edge)
    kept = np.stack([is_rim[ends[:, 0]], is_rim[ends[:, 1]]], axis=1)
    middle = np.where((kept[:, 0] & ~kept[:, 1])[:, None], first, middle)
    return np.where((kept[:, 1] & ~kept[:, 0])[:, None], second, middle)


def costs(points: Floats, quadrics: Floats) -> Floats:
    """Return the values [E] of quadrics [E, 4, 4] at points [E, 3], at least 0."""
    whole = np.concatenate([points, np.ones((len(points), 1))], axis=1)
    values: Floats = np.maximum(np.einsum("ei,eij,ej->e", whole, quadrics, whole), 0.0)
    return values


def _best_points(first: Floats, second: Floats, quadrics: Floats, *, on_edge: bool) -> Floats:
    middle = (first + second) / 2
    along = second - first
    length_2 = (along * along).sum(1)
    form, linear = quadrics[:, :3, :3], quadrics[:, :3, 3]
    weight = np.trace(form, axis1=1, axis2=2) * REGULARIZED + LEAST
    form = form + weight[:, None, None] * np.eye(3)
    best = np.linalg.solve(form, (weight[:, None] * middle - linear)[..., None])[..., 0]
    if on_edge:
        share = ((best - first) * along).sum(1) / np.maximum(length_2, LEAST)
        nearest: Floats = first + share.clip(0, 1)[:, None] * along
        return nearest
    is_far = ((best - middle) ** 2).sum(1) > MOST_WANDERING**2 * length_2
    return np.where(is_far[:, None], middle, best)


def _planes(normals: Floats, points: Floats) -> Floats:
    """Return the quadrics [Q, 4, 4] of planes through points [Q, 3]."""
    plane = np.concatenate([normals, -(normals * points).sum(1, keepdims=True)], axis=1)
    quadrics: Floats = plane[:, :, None] * plane[:, None]
    return quadrics


def _add_sides(total: Floats, vertices: Floats, faces: Indices, normals: Floats, corner: int, weights: Floats) -> None:
    """Add planes through the edges from a corner of triangles, at right angles to these, to both ends."""
    chosen = weights.nonzero()[0]
    start, end = faces[chosen, corner], faces[chosen, (corner + 1) % 3]
    sides = _unit(np.cross(vertices[end] - vertices[start], normals[chosen]))
    planes = _planes(sides, vertices[start]) * weights[chosen, None, None]
    _add(total, start, planes)
    _add(total, end, planes)


def _is_feature(edges: Edges, normals: Floats, placement: Placement) -> NDArray[np.bool_]:
    """Return the mask [E] of edges of two triangles that are at more than an angle to each other."""
    total = np.stack(
        [
            np.bincount(edges.of_faces.ravel(), np.repeat(normals[:, axis], 3), minlength=len(edges.ends))
            for axis in range(3)
        ],
        axis=1,
    )
    cosine = (total**2).sum(1) / 2 - 1  # |a + b|² = 2 + 2 cos
    found: NDArray[np.bool_] = (edges.num_faces == 2) & (cosine < math.cos(math.radians(placement.feature_degrees)))
    return found


def _lines(vertices: Floats, edges: Edges) -> Floats:
    """Return the quadrics [E, 4, 4] of the lines of edges."""
    start = vertices[edges.ends[:, 0]]
    direction = _unit(vertices[edges.ends[:, 1]] - start)
    form = np.eye(3) - direction[:, :, None] * direction[:, None]
    linear = -np.einsum("eij,ej->ei", form, start)
    quadrics = np.zeros((len(start), 4, 4))
    quadrics[:, :3, :3] = form
    quadrics[:, :3, 3] = quadrics[:, 3, :3] = linear
    quadrics[:, 3, 3] = -(linear * start).sum(1)
    return quadrics


def _add(total: Floats, index: Indices, quadrics: Floats) -> None:
    """Add the lower halves of quadrics [Q, 4, 4] to those of vertices [Q]."""
    for row in range(4):
        for column in range(row + 1):
            total[:, row, column] += np.bincount(index, quadrics[:, row, column], minlength=len(total))


def _unit(directions: Floats) -> Floats:
    lengths = np.linalg.norm(directions, axis=1, keepdims=True)
    return np.where(lengths > LEAST, directions / np.maximum(lengths, LEAST), 0.0)
