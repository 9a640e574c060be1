"""Views of meshes: one ray for each pixel.

`H W` pixels, `V` vertices, `F` triangles, `K` pixels that show a triangle.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from darkroom.engine.cancel import CancelToken
from darkroom.engine.media.mesh import Mesh
from darkroom.engine.media.rotations import matrices_of
from darkroom.engine.media.surfaces.ray_tree import RayTree, shares_of

FOV_DEGREES, MARGIN = 40.0, 1.04  # of a view that nothing else is said of
LEAST_NORM, NEAR, FAR = 1e-6, 1e-5, 1e30
CLAY, LEAST_LIGHT = 0.72, 0.15
GAMMA = 2.2
VERTICAL = 0.99  # cosine from which a view is taken for one straight up or down


@dataclass(frozen=True, slots=True)
class View:
    """A position [3], unit directions forwards, right and up [3], and half the height of an image at distance 1."""

    eye: torch.Tensor
    forward: torch.Tensor
    right: torch.Tensor
    up: torch.Tensor
    slope: float


@dataclass(frozen=True, slots=True)
class Shown:
    """The pixels [H, W] of a view that show a mesh, and what each of them shows."""

    mask: torch.Tensor
    faces: torch.Tensor  # [K]
    shares: torch.Tensor  # [K, 3]
    distances: torch.Tensor  # [K]
    directions: torch.Tensor  # [K, 3]


def placed(mesh: Mesh, transform: Mapping[str, Any]) -> Mesh:
    """Return one mesh scaled, turned and moved as an object of a 3D page is: `scale`, `quaternion` and `position`."""
    scale, position = (torch.tensor(_numbers(transform[name], "xyz")) for name in ("scale", "position"))
    matrix = matrices_of(torch.tensor(_numbers(transform["quaternion"], "wxyz")))
    vertices = (_tensor(mesh.vertices).cpu().float() * scale) @ matrix.T + position
    normals = mesh.normals
    if normals is not None:
        normals = functional.normalize((_tensor(normals).cpu().float() / scale) @ matrix.T, dim=-1, eps=LEAST_NORM)
    return Mesh(vertices, mesh.faces, mesh.uvs, mesh.vertex_colors, mesh.texture, normals=normals)


def view_of(mesh: Mesh, camera: Mapping[str, Any] | None) -> View:
    """Return the view of a camera of ComfyUI's 3D pages, without its roll; from the front where there is none."""
    vertices = _tensor(mesh.vertices).cpu().float()
    center = (vertices.amax(0) + vertices.amin(0)) / 2
    if camera is None:
        slope = math.tan(math.radians(FOV_DEGREES) / 2)
        distance = float((vertices - center).norm(dim=1).amax().clamp(min=LEAST_NORM)) / slope * MARGIN
        return _looking(center + torch.tensor([0.0, 0.0, distance]), center, slope)
    target = camera.get("target")
    aim = torch.tensor(_numbers(target, "xyz")) if target else center
    fov = float(camera.get("fov") or 0) or FOV_DEGREES
    zoom = max(float(camera.get("zoom") or 1.0), 1e-3)
    eye = torch.tensor(_numbers(camera.get("position") or {}, "xyz"))
    return _looking(eye, aim, math.tan(math.radians(fov) / 2) / zoom)


def shown(mesh: Mesh, view: View, height: int, width: int, cancel: CancelToken) -> Shown:
    """Return the triangle that each pixel shows, the first row at the top. Raises ValueError for too many of both."""
    triangles = _tensor(mesh.vertices).cpu().float()[_tensor(mesh.faces).cpu().long()]
    rows = (1.0 - (torch.arange(height) + 0.5) / height * 2) * view.slope
    columns = ((torch.arange(width) + 0.5) / width * 2 - 1.0) * view.slope * (width / height)
    directions = view.forward + view.up * rows[:, None, None] + view.right * columns[None, :, None]
    directions = functional.normalize(directions.reshape(-1, 3), dim=-1)
    tree = RayTree(triangles)
    tree.check_searches("width and height", height * width)
    hits = tree.first_hits(view.eye.expand_as(directions), directions, (NEAR, FAR), cancel)
    found = hits.faces >= 0
    distances, faces, directions = hits.distances[found], hits.faces[found], directions[found]
    shares = shares_of(view.eye + distances[:, None] * directions, triangles[faces])
    return Shown(found.reshape(height, width), faces, shares, distances, directions)


def texture_colors(mesh: Mesh, seen: Shown) -> torch.Tensor:
    """Return the colors [K, 3] of the texture."""
    positions = _between(mesh, mesh.uvs, seen) * 2 - 1
    texture = mesh.texture
    assert texture is not None
    image = texture.cpu().float().movedim(-1, 0)[None]
    found = functional.grid_sample(image, positions[None, None], padding_mode="border", align_corners=False)
    return found[0, :, 0].T


def vertex_colors(mesh: Mesh, seen: Shown) -> torch.Tensor:
    """Return the colors [K, 3] between those of vertices, which are linear, as display values."""
    colors = _tensor(mesh.vertex_colors).cpu().float()[:, :3].clamp(0, 1) ** (1 / GAMMA)
    return _between(mesh, colors, seen)


def clay_colors(mesh: Mesh, seen: Shown) -> torch.Tensor:
    """Return grays [K, 3], darker where the surface turns away."""
    light = (_face_normals(mesh, seen) * seen.directions).sum(1).abs().clamp(LEAST_LIGHT, 1.0)
    return (CLAY * light)[:, None].expand(-1, 3)


def normal_colors(mesh: Mesh, seen: Shown, view: View) -> torch.Tensor:
    """Return the normals [K, 3] to the right, up and towards the viewer, as colors."""
    if mesh.normals is not None:
        normals = functional.normalize(_between(mesh, mesh.normals, seen), dim=-1, eps=LEAST_NORM)
    else:
        normals = _face_normals(mesh, seen)
        normals = torch.where((normals * seen.directions).sum(1, keepdim=True) > 0, -normals, normals)
    local = torch.stack([(normals * axis).sum(1) for axis in (view.right, view.up, -view.forward)], dim=1)
    return local * 0.5 + 0.5


def depth_colors(seen: Shown) -> torch.Tensor:
    """Return grays [K, 3] from white for the nearest pixel to black for the farthest."""
    if not len(seen.distances):
        return torch.zeros(0, 3)
    farthest = seen.distances.max()
    span = (farthest - seen.distances.min()).clamp(min=1e-6)
    return ((farthest - seen.distances) / span)[:, None].expand(-1, 3)


def _looking(eye: torch.Tensor, aim: torch.Tensor, slope: float) -> View:
    forward = functional.normalize(aim - eye, dim=-1, eps=LEAST_NORM)
    upright = torch.tensor([0.0, 1.0, 0.0] if abs(float(forward[1])) < VERTICAL else [0.0, 0.0, 1.0])
    right = functional.normalize(torch.linalg.cross(forward, upright), dim=-1, eps=LEAST_NORM)
    return View(eye, forward, right, torch.linalg.cross(right, forward), slope)


def _face_normals(mesh: Mesh, seen: Shown) -> torch.Tensor:
    corners = _tensor(mesh.vertices).cpu().float()[_tensor(mesh.faces).cpu().long()[seen.faces]]
    normals = torch.linalg.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
    return functional.normalize(normals, dim=-1, eps=LEAST_NORM)


def _between(mesh: Mesh, values: object, seen: Shown) -> torch.Tensor:
    """Return values [K, C] of pixels, between those [V, C] of vertices."""
    corners = _tensor(values).cpu().float()[_tensor(mesh.faces).cpu().long()[seen.faces]]
    return (seen.shares[:, :, None] * corners).sum(1)


def _numbers(values: Mapping[str, Any], names: str) -> list[float]:
    return [float(values.get(name, 0.0)) for name in names]


def _tensor(values: object) -> torch.Tensor:
    assert isinstance(values, torch.Tensor)
    return values
