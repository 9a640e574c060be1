"""Layouts of meshes on a texture: charts that lie flat, packed into a square (the xatlas library, J. Young 2018).

`V` vertices [V, 3], `F` triangles [F, 3], `N` vertices of the layout: one for each chart that a vertex belongs to.
"""

from __future__ import annotations

import importlib.util
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from darkroom.engine.cancel import CancelToken
from darkroom.engine.media.isolated import Bounds, isolated
from darkroom.engine.media.mesh import Mesh
from darkroom.engine.media.surfaces.unwrap_charts import FACES, MAPPING, OPTIONS, UVS, VERTICES

WELD_TOLERANCE = 1e-5  # of the diagonal, where none is asked for
MAX_FACES = 1_000_000  # xatlas needs minutes and a few gigabytes for as many
SECONDS = 600.0
BASE_BYTES, BYTES_PER_FACE = 1 << 30, 8000

Indices = NDArray[np.int64]


def is_available() -> bool:
    """Return True where the library is installed."""
    return importlib.util.find_spec("xatlas") is not None


def unwrapped(
    mesh: Mesh, side: int, padding: int, weld_distance: float, cancel: CancelToken, *, is_thorough: bool
) -> Mesh:
    """Return one mesh, without a batch, with positions of 0..1 on a texture of about `side` texels, v downwards.

    Vertices within `weld_distance`, a share of the diagonal, are one for the charts. Vertices between charts come once
    for each. Only colors stay attached. A thorough layout takes several rounds to find its charts. Raises ValueError
    for too many triangles, and where the library takes too long.
    """
    assert isinstance(mesh.vertices, torch.Tensor)
    assert isinstance(mesh.faces, torch.Tensor)
    if not len(mesh.faces):
        return replace(mesh, uvs=mesh.vertices[:, :2] * 0)
    if len(mesh.faces) > MAX_FACES:
        raise ValueError(
            f"mesh: too many triangles to unwrap; got {len(mesh.faces)}, expected at most {MAX_FACES} (DecimateMesh)"
        )
    vertices = mesh.vertices.detach().cpu().numpy().astype(np.float32)
    faces = mesh.faces.cpu().numpy().astype(np.int64)
    joined, originals = _welded(vertices, weld_distance)
    made = isolated(
        "darkroom.engine.media.surfaces.unwrap_charts:charts",
        {
            VERTICES: vertices[originals],
            FACES: joined[faces],
            OPTIONS: np.array([side, padding, int(is_thorough)], np.int64),
        },
        Bounds(SECONDS, BASE_BYTES + BYTES_PER_FACE * len(faces)),
        cancel,
    )
    mapping = torch.from_numpy(originals[made[MAPPING].astype(np.int64)])
    uvs = torch.from_numpy(made[UVS].astype(np.float32))
    uvs[:, 1] = 1.0 - uvs[:, 1]
    colors = mesh.vertex_colors
    assert colors is None or isinstance(colors, torch.Tensor)
    return Mesh(
        mesh.vertices[mapping],
        torch.from_numpy(made[FACES].astype(np.int64)).to(mesh.faces.device),
        uvs=uvs.to(mesh.vertices),
        vertex_colors=None if colors is None else colors[mapping],
        texture=mesh.texture,
    )


def _welded(vertices: NDArray[np.float32], distance: float) -> tuple[Indices, Indices]:
    """Return the position [V] of each vertex among the distinct ones, and a vertex [N] at each of these."""
    diagonal = float(np.linalg.norm(vertices.max(0) - vertices.min(0)))
    tolerance = (distance or WELD_TOLERANCE) * diagonal
    if not tolerance:
        return np.zeros(len(vertices), np.int64), np.zeros(1, np.int64)
    cells = np.round((vertices - vertices.min(0)) / tolerance).astype(np.int64)
    _, originals, joined = np.unique(cells, axis=0, return_index=True, return_inverse=True)
    return joined.reshape(-1), originals
