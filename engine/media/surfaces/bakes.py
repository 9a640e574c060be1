"""Details of a fine mesh as textures of a coarse one: normals and ambient occlusion.

`K` covered texels, `V` vertices, `F` triangles, `S` rays from each texel.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn import functional

from darkroom.engine.cancel import CancelToken
from darkroom.engine.media.mesh import Mesh
from darkroom.engine.media.surfaces.normals import smooth_normals, tangents
from darkroom.engine.media.surfaces.ray_tree import RayTree, shares_of
from darkroom.engine.media.surfaces.texels import Texels, grown, normalized_uvs, texels_of

LEAST_NORM = 1e-6
RAYS_AT_ONCE = 1 << 18
FLAT = (0.5, 0.5, 1.0)


@dataclass(frozen=True, slots=True)
class Occlusion:
    """Rays from each texel, their length and start above the surface as shares of the diagonal, and the strength."""

    num_rays: int
    max_distance: float
    bias: float
    strength: float


@dataclass(frozen=True, slots=True)
class _Surface:
    """One mesh: vertices [V, 3], triangles [F, 3], and normals [V, 3] of its own or smooth ones."""

    vertices: torch.Tensor
    faces: torch.Tensor
    normals: torch.Tensor

    @property
    def diagonal(self) -> float:
        return max(float((self.vertices.amax(0) - self.vertices.amin(0)).norm()), LEAST_NORM)


@dataclass(frozen=True, slots=True)
class _Target:
    """The covered texels of a coarse mesh, with positions and unit normals [K, 3]."""

    surface: _Surface
    uvs: torch.Tensor
    texels: Texels
    positions: torch.Tensor
    normals: torch.Tensor


def tangent_normals(
    coarse: Mesh, fine: Mesh, side: int, cage: float, cancel: CancelToken, *, ignore_backfaces: bool
) -> torch.Tensor:
    """Return the normals [side, side, 3] of a fine mesh in the tangent space of a coarse one, y upwards.

    A ray against the normal of each texel, from a cage around the coarse mesh at a share of the fine one's diagonal,
    finds the surface; where it finds none, the nearest one counts, and is flat where it looks away.
    """
    target = _target(coarse, side, cancel)
    image = torch.tensor(FLAT).expand(side, side, 3).clone()
    if not len(fine.faces) or not len(target.positions):
        return image
    source = _surface(fine)
    tree = RayTree(source.vertices[source.faces])
    distance = max(cage * source.diagonal, 1e-6)
    origins = target.positions + target.normals * distance
    hits = tree.first_hits(origins, -target.normals, (0.0, 2 * distance), cancel, from_front=ignore_backfaces)
    points, faces = origins - hits.distances[:, None] * target.normals, hits.faces.clone()
    missed = faces < 0
    points[missed], faces[missed] = tree.nearest(target.positions[missed], cancel)
    shares = shares_of(points, tree.triangles[faces])
    normals = _unit((shares[:, :, None] * source.normals[source.faces[faces]]).sum(1))
    image[target.texels.covered] = _in_tangent_space(target, normals) * 0.5 + 0.5
    return _grown(image.clamp(0, 1), target.texels)


def ambient_occlusion(coarse: Mesh, fine: Mesh, side: int, occlusion: Occlusion, cancel: CancelToken) -> torch.Tensor:
    """Return a gray image [side, side, 3]: the share of rays from each texel that a fine mesh does not block.

    Rays are spread over the hemisphere by their cosine, from the nearest point of the fine mesh. Uses torch's random
    numbers.
    """
    target = _target(coarse, side, cancel)
    image = torch.ones(side, side, 3)
    if not len(fine.faces) or not len(target.positions):
        return image
    source = _surface(fine)
    tree = RayTree(source.vertices[source.faces])
    tree.check_searches("resolution and samples", len(target.positions) * occlusion.num_rays)
    bias, reach = max(occlusion.bias * source.diagonal, 1e-5), occlusion.max_distance * source.diagonal
    origins = tree.nearest(target.positions, cancel)[0] + target.normals * bias
    num_rays = occlusion.num_rays
    at_once = max(RAYS_AT_ONCE // num_rays, 1)
    blocked = []
    for start in range(0, len(origins), at_once):
        directions = _hemisphere(target.normals[start : start + at_once], num_rays)
        starts = origins[start : start + at_once].repeat_interleave(num_rays, dim=0)
        hits = tree.are_blocked(starts, directions, (bias, reach), cancel)
        blocked.append(hits.reshape(-1, num_rays).float().mean(1))
    open_share = (1.0 - torch.cat(blocked) * occlusion.strength).clamp(0, 1)
    image[target.texels.covered] = open_share[:, None]
    return _grown(image, target.texels)


def projected(coarse_positions: torch.Tensor, fine: Mesh, cancel: CancelToken) -> torch.Tensor:
    """Return the nearest points [K, 3] of a fine mesh to positions [K, 3]; these where it has no triangles."""
    if not len(fine.faces) or not len(coarse_positions):
        return coarse_positions
    source = _surface(fine)
    return RayTree(source.vertices[source.faces]).nearest(coarse_positions, cancel)[0]


def _surface(mesh: Mesh) -> _Surface:
    assert isinstance(mesh.vertices, torch.Tensor)
    assert isinstance(mesh.faces, torch.Tensor)
    vertices, faces = mesh.vertices.cpu().float(), mesh.faces.cpu().long()
    if isinstance(mesh.normals, torch.Tensor):
        return _Surface(vertices, faces, mesh.normals.cpu().float())
    return _Surface(vertices, faces, torch.from_numpy(smooth_normals(vertices.numpy(), faces.numpy())))


def _target(mesh: Mesh, side: int, cancel: CancelToken) -> _Target:
    assert isinstance(mesh.uvs, torch.Tensor)
    surface, uvs = _surface(mesh), normalized_uvs(mesh.uvs.cpu().float())
    texels = texels_of(uvs * side, surface.faces, side, side, cancel)
    positions = texels.values(surface.faces, surface.vertices)
    return _Target(surface, uvs, texels, positions, _unit(texels.values(surface.faces, surface.normals)))


def _in_tangent_space(target: _Target, normals: torch.Tensor) -> torch.Tensor:
    """Return unit normals [K, 3] along the tangent, the bitangent and the normal of their texels."""
    surface = target.surface
    found = tangents(*(values.numpy() for values in (surface.vertices, surface.faces, target.uvs, surface.normals)))
    own = target.texels.values(surface.faces, torch.from_numpy(found))
    up = target.normals
    along = _unit(own[:, :3] - up * (up * own[:, :3]).sum(1, keepdim=True))
    across = own[:, 3:] * torch.linalg.cross(up, along)
    local = _unit(torch.stack([(normals * axis).sum(1) for axis in (along, across, up)], dim=1))
    return torch.where(local[:, 2:] < 0, torch.tensor([0.0, 0.0, 1.0]), local)


def _hemisphere(normals: torch.Tensor, count: int) -> torch.Tensor:
    """Return `count` random directions around each normal [K, 3], as [K * count, 3], by their cosine."""
    upright = torch.where(normals[:, 2:].abs() < 0.999, torch.tensor([0.0, 0.0, 1.0]), torch.tensor([1.0, 0.0, 0.0]))
    along = _unit(torch.linalg.cross(upright, normals))
    across = torch.linalg.cross(normals, along)
    radius_squared, turn = torch.rand(len(normals), count, 1), torch.rand(len(normals), count, 1) * (2 * math.pi)
    radius = radius_squared.sqrt()
    flat = along[:, None] * (radius * turn.cos()) + across[:, None] * (radius * turn.sin())
    return _unit((flat + normals[:, None] * (1.0 - radius_squared).sqrt()).reshape(-1, 3))


def _grown(image: torch.Tensor, texels: Texels) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(grown(image.numpy(), texels.covered.numpy())))


def _unit(vectors: torch.Tensor) -> torch.Tensor:
    return functional.normalize(vectors, dim=-1, eps=LEAST_NORM)
