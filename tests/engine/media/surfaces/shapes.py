"""Meshes that tests are about."""

from __future__ import annotations

import torch

from darkroom.engine.media.mesh import Mesh
from darkroom.engine.media.surfaces.weld import welded


def square_grid(side: int, height: float = 0.0) -> Mesh:
    """Return a unit square of `side` cells a side, facing z, at a height, laid out on the whole texture."""
    lines = torch.linspace(0, 1, side + 1)
    y, x = torch.meshgrid(lines, lines, indexing="ij")
    cells = torch.arange(side * side)
    first = cells // side * (side + 1) + cells % side
    lower = torch.stack([first, first + 1, first + side + 2], dim=1)
    upper = torch.stack([first, first + side + 2, first + side + 1], dim=1)
    positions = torch.stack([x, y, torch.full_like(x, height)], dim=-1).reshape(-1, 3)
    return Mesh(positions, torch.stack([lower, upper], dim=1).reshape(-1, 3), uvs=positions[:, :2].clone())


def cube() -> Mesh:
    """Return the surface of the unit cube around the origin: eight vertices, twelve triangles that face outwards."""
    vertices = torch.cartesian_prod(*[torch.tensor([-0.5, 0.5])] * 3)
    quads = torch.tensor([[0, 1, 3, 2], [4, 6, 7, 5], [0, 4, 5, 1], [2, 3, 7, 6], [0, 2, 6, 4], [1, 5, 7, 3]])
    return Mesh(vertices, torch.cat([quads[:, [0, 1, 2]], quads[:, [0, 2, 3]]]))


def soup_of(mesh: Mesh) -> Mesh:
    """Return the triangles of a mesh without shared vertices."""
    assert isinstance(mesh.vertices, torch.Tensor)
    assert isinstance(mesh.faces, torch.Tensor)
    return Mesh(mesh.vertices[mesh.faces].reshape(-1, 3), torch.arange(3 * len(mesh.faces)).reshape(-1, 3))


def in_a_batch(mesh: Mesh) -> Mesh:
    """Return a mesh as the only one of a batch."""
    assert isinstance(mesh.vertices, torch.Tensor)
    assert isinstance(mesh.faces, torch.Tensor)
    uvs = None if mesh.uvs is None else torch.as_tensor(mesh.uvs)[None]
    return Mesh(mesh.vertices[None], mesh.faces[None], uvs=uvs, texture=mesh.texture)


def tensor(values: object) -> torch.Tensor:
    """Return values of a mesh that are one tensor."""
    assert isinstance(values, torch.Tensor)
    return values


def fine_box(cells: int) -> Mesh:
    """Return the surface of the unit cube around the origin, closed, of `cells` squares a side on each face."""
    side = square_grid(cells)
    positions = tensor(side.vertices) - torch.tensor([0.5, 0.5, -0.5])  # the face towards z
    faces = tensor(side.faces)
    parts = []
    for axes, signs in (
        ((0, 1, 2), (1, 1, 1)), ((1, 0, 2), (1, 1, -1)), ((2, 0, 1), (1, 1, 1)),
        ((2, 1, 0), (-1, 1, 1)), ((1, 2, 0), (1, 1, 1)), ((0, 2, 1), (1, -1, 1)),
    ):  # fmt: skip
        parts.append(positions[:, list(axes)] * torch.tensor(signs))
    corners = torch.cat([_outwards(part, faces) for part in parts]).reshape(-1, 3)
    return welded(Mesh(corners, torch.arange(len(corners)).reshape(-1, 3)), 1e-5)


def _outwards(positions: torch.Tensor, faces: torch.Tensor) -> torch.Tensor:
    """Return triangles [F, 3, 3] of a face of a box, facing away from the origin."""
    triangles = positions[faces]
    a, b, c = triangles.unbind(1)
    inwards = (torch.linalg.cross(b - a, c - a) * a).sum(1) < 0
    return torch.where(inwards[:, None, None], triangles.flip(1), triangles)
