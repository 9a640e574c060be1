"""Nodes that join the vertices of meshes, close their holes, and smooth their normals."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import numpy as np
import torch

from darkroom.engine.media.mesh import OF_CORNERS, Mesh, batched
from darkroom.engine.media.surfaces.holes import HoleLimits, filled
from darkroom.engine.media.surfaces.normals import SMOOTH_DEGREES, creased, smooth_normals
from darkroom.engine.media.surfaces.weld import each_item, welded
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.media.mesh_editing import NamedMesh
from darkroom.engine.nodes.sockets import MESH
from darkroom.engine.nodes.widgets import Flag, Float, Int

MODULE = "comfy_extras.nodes_mesh_postprocess"
CATEGORY = "3d/mesh"

Tolerance = Annotated[float, Float(min=0.0, step=1e-6)]


@node("WeldVertices", display_name="Weld Vertices", category=CATEGORY, python_module=MODULE)
def weld_vertices(
    context: NodeContext, *, mesh: MESH, epsilon_rel: Tolerance = 1e-5, epsilon_abs: Tolerance = 0.0
) -> NamedMesh:
    """Merge vertices at nearly the same position: within a share of the mesh's diagonal, or an absolute distance."""
    return each_item(mesh, lambda item: welded(item, epsilon_rel, epsilon_abs))


@node("FillHoles", display_name="Fill Holes", category=CATEGORY, python_module=MODULE)
def fill_holes(
    context: NodeContext,
    *,
    mesh: MESH,
    max_perimeter: Annotated[float, Float(min=0.0, step=0.0001)] = 0.03,
    weld_epsilon_rel: Tolerance = 1e-5,
    max_vertices: Annotated[int, Int(min=3, max=1024)] = 16,
    fill_chains: Annotated[bool, Flag()] = False,
) -> NamedMesh:
    """Close holes up to a length around them. A length of 0 leaves the mesh as it is."""
    if not max_perimeter:
        return each_item(mesh, lambda item: item)
    limits = HoleLimits(max_perimeter, max_vertices, fill_chains)
    return each_item(mesh, lambda item: filled(item, limits, weld_epsilon_rel))


@node("MeshSmoothNormals", display_name="Smooth Mesh Normals", category=CATEGORY, python_module=MODULE)
def mesh_smooth_normals(
    context: NodeContext,
    *,
    mesh: MESH,
    crease_angle: Annotated[float, Float(min=0.0, max=180.0, step=1.0)] = SMOOTH_DEGREES,
) -> NamedMesh:
    """Attach smooth normals. Edges of more than an angle stay sharp: vertices are split there."""
    return batched([_smoothed(item, crease_angle) for item in mesh.items()], mesh)


def _smoothed(mesh: Mesh, degrees: float) -> Mesh:
    assert isinstance(mesh.vertices, torch.Tensor)
    assert isinstance(mesh.faces, torch.Tensor)
    vertices, faces = mesh.vertices.cpu().numpy().astype(np.float32), mesh.faces.cpu().numpy().astype(np.int64)
    if degrees >= SMOOTH_DEGREES or not len(faces):
        return replace(mesh, normals=torch.from_numpy(smooth_normals(vertices, faces)).to(mesh.vertices))
    source, split, normals = creased(vertices, faces, degrees)
    attached = {
        name: values[torch.from_numpy(source)] for name in OF_CORNERS if (values := getattr(mesh, name)) is not None
    }
    attached["normals"] = torch.from_numpy(normals).to(mesh.vertices)
    vertices_now, faces_now = mesh.vertices[torch.from_numpy(source)], torch.from_numpy(split).to(mesh.faces)
    return replace(mesh, vertices=vertices_now, faces=faces_now, **attached)


NODES = (weld_vertices, fill_holes, mesh_smooth_normals)
