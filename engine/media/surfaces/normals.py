"""Normals and tangents of vertices. `V` vertices [V, 3], `F` triangles [F, 3], float32 and int64 in NumPy."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from darkroom.engine.media.surfaces.neighbours import connected

SAME_POSITION = 1e-5  # of the longest side of the bounding box: vertices nearer have one normal
LEAST = 1e-12
SMOOTH_DEGREES = 180.0

Floats = NDArray[np.float32]
Indices = NDArray[np.int64]


def smooth_normals(vertices: Floats, faces: Indices) -> Floats:
    """Return unit normals [V, 3], means of the triangles around each position weighted by their areas."""
    if not len(vertices):
        return np.zeros((0, 3), np.float32)
    least = vertices.min(0)
    side = max(float((vertices.max(0) - least).max()), 1e-9) * SAME_POSITION
    cells = np.round((vertices - least) * (1.0 / side)).astype(np.int64)
    group = np.unique(cells, axis=0, return_inverse=True)[1].reshape(-1)
    totals = _totals(group[faces], _area_normals(vertices, faces), int(group.max()) + 1)
    return _unit(totals)[group].astype(np.float32)


def creased(vertices: Floats, faces: Indices, degrees: float) -> tuple[Indices, Indices, Floats]:
    """Split vertices along edges at which triangles meet at more than `degrees`.

    Returns the vertex that each new one is a copy of [N], the triangles of new vertices [F, 3], and normals [N, 3].
    """
    area_normals = _area_normals(vertices, faces)
    group = _smooth_groups(faces, _unit(area_normals), math.cos(math.radians(degrees)))
    keys = (faces * (int(group.max()) + 1) + group[:, None]).reshape(-1)  # a vertex in a group of triangles
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    split = rank[inverse.reshape(-1)].reshape(-1, 3)
    normals = _unit(_totals(split, area_normals, len(order)))
    return faces.reshape(-1)[first[order]], split, normals.astype(np.float32)


def tangents(vertices: Floats, faces: Indices, uvs: Floats, normals: Floats) -> Floats:
    """Return the direction [V, 4] in which u grows on the surface, with the handedness of the bitangent (±1) last.

    E. Lengyel, "Foundations of Game Engine Development", volume 2, section 7.5.
    """
    first, second = (vertices[faces[:, corner]] - vertices[faces[:, 0]] for corner in (1, 2))
    (u1, v1), (u2, v2) = ((uvs[faces[:, corner]] - uvs[faces[:, 0]]).T for corner in (1, 2))
    area = u1 * v2 - u2 * v1
    inverse = (1.0 / np.where(np.abs(area) < 1e-20, 1e-20, area).astype(np.float32))[:, None]
    along_u = (v2[:, None] * first - v1[:, None] * second) * inverse
    along_v = (u1[:, None] * second - u2[:, None] * first) * inverse
    total_u, total_v = (_totals(faces, values, len(vertices)) for values in (along_u, along_v))
    up = _unit(normals)
    tangent = _unit(total_u - up * (up * total_u).sum(1, keepdims=True))
    handedness = np.where((np.cross(up, tangent) * total_v).sum(1) < 0, -1.0, 1.0)
    return np.concatenate([tangent, handedness[:, None]], axis=1).astype(np.float32)


def _area_normals(vertices: Floats, faces: Indices) -> Floats:
    """Return the normals of triangles [F, 3], twice as long as their areas."""
    a, b, c = (vertices[faces[:, corner]] for corner in range(3))
    return np.cross(b - a, c - a)


def _totals(faces: Indices, values: NDArray[np.floating], count: int) -> NDArray[np.float64]:
    """Return the sums [count, 3] of the values [F, 3] of triangles at each of their vertices."""
    flat = faces.reshape(-1)
    return np.stack([np.bincount(flat, np.repeat(values[:, axis], 3), minlength=count) for axis in range(3)], axis=1)


def _unit(vectors: NDArray[np.floating]) -> NDArray[np.float64]:
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.where(lengths > LEAST, lengths, 1.0), dtype=np.float64)


def _smooth_groups(faces: Indices, normals: NDArray[np.float64], least_cosine: float) -> Indices:
    """Return the group [F] of each triangle, joined over edges of two triangles that meet at a small angle."""
    edges = np.sort(np.stack([faces, np.roll(faces, -1, axis=1)], axis=-1), axis=-1).reshape(-1, 2)
    keys = edges[:, 0] * (int(faces.max()) + 1) + edges[:, 1]
    order = np.argsort(keys, kind="stable")
    _, first, counts = np.unique(keys[order], return_index=True, return_counts=True)
    owners = order // 3
    pairs = first[counts == 2]
    left, right = owners[pairs], owners[pairs + 1]
    is_smooth = (normals[left] * normals[right]).sum(1) >= least_cosine
    left, right = left[is_smooth], right[is_smooth]
    return connected(len(faces), left, right)
