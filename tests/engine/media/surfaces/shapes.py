"""Meshes that tests are about."""

from __future__ import annotations

import torch

from darkroom.engine.media.mesh import Mesh


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
