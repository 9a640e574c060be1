"""Vertices at nearly the same position, merged to one. `V` vertices [V, 3], `F` triangles [F, 3]."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from darkroom.engine.media.mesh import Mesh, batched

LEAST_TOLERANCE = 1e-12


def each_item(mesh: Mesh, change: Callable[[Mesh], Mesh]) -> Mesh:
    """Return a batch of changed meshes. Only colors stay attached to the vertices, since others move."""
    bare = replace(mesh, uvs=None, normals=None, tangents=None)
    return batched([change(item) for item in bare.items()], bare)


def welded(mesh: Mesh, relative: float, absolute: float = 0.0) -> Mesh:
    """Merge the vertices of one mesh, without a batch, that share a cell of a grid.

    The side of a cell is `absolute`, or where that is 0 `relative` times the diagonal of the mesh's bounding box. The
    vertex and the color of a cell are the means of those merged. Linear but for one sort.
    """
    vertices = _tensor(mesh.vertices)
    if not len(vertices):
        return mesh
    least, largest = vertices.amin(0), vertices.amax(0)
    side = absolute or max(float((largest - least).norm()) * relative, LEAST_TOLERANCE)
    cells = ((vertices - least) / side).round().long()
    unique, index = torch.unique(cells, dim=0, return_inverse=True)
    if len(unique) == len(vertices):
        return mesh
    colors = mesh.vertex_colors
    return replace(
        mesh,
        vertices=_means(vertices, index, len(unique)),
        faces=index[_tensor(mesh.faces).long()].to(_tensor(mesh.faces).dtype),
        vertex_colors=None if colors is None else _means(_tensor(colors), index, len(unique)),
    )


def _means(values: torch.Tensor, index: torch.Tensor, count: int) -> torch.Tensor:
    """Return the means [count, C] of values [V, C] with the same index [V]."""
    total = values.new_zeros(count, values.shape[1]).index_add_(0, index, values)
    return total / torch.bincount(index, minlength=count).clamp(min=1)[:, None].to(values)


def _tensor(values: object) -> torch.Tensor:
    assert isinstance(values, torch.Tensor)
    return values
