"""A mesh anew, with triangles of one size, from the distances to its surface on a grid.

`V` vertices, `F` triangles. Vertices are within the cube of side 1 around the origin.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch.nn import functional

from darkroom.engine.cancel import CancelToken
from darkroom.engine.media.mesh import Mesh
from darkroom.engine.media.surfaces.dual_contour import Crossings, contoured, contoured_sheets, corners_of, crossings
from darkroom.engine.media.surfaces.edges import Indices, compacted, without_degenerate
from darkroom.engine.media.surfaces.narrow_band import CheckFits, Grid, NearTriangles, cells_along
from darkroom.engine.media.surfaces.parts import KeptParts, kept_faces
from darkroom.engine.media.surfaces.ray_tree import shares_of
from darkroom.engine.media.surfaces.smooth import merged_pairs, poles, smoothed
from darkroom.engine.media.surfaces.weld import welded

MARGIN = 3.0  # bands by which the grid is larger than the cube
CELLS_PER_VERTEX = 3  # of a grid whose occupied cells are as many as the vertices wanted
FARTHEST = 4.0  # cells from the surface at which a vertex still is moved to it and colored
LEAST_NORM = 1e-12


@dataclass(frozen=True, slots=True)
class Remeshing:
    """Rules of remeshing."""

    resolution: int = 512
    band: float = 1.0
    """Cells from the surface at which voxels are kept; without signs also the distance of the new surface from it."""
    is_signed: bool = False
    """True takes the sides of triangles as inside and outside; False surrounds the surface on both sides."""
    has_sharp_edges: bool = False
    """True puts vertices where the planes of triangles meet."""
    has_sheets: bool = False
    """True gives a cell a vertex for each sheet of the surface; with signs only, and without sharp edges."""
    share_of_original: float = 0.0
    """Share of the way from new vertices to the nearest points of the old surface."""
    without_poles: bool = False
    """True merges neighbours that have three neighbours each."""
    smoothing_rounds: int = 0
    most_vertices: int = 0
    """Vertices above which the mesh is welded by a grid first; 0 for no such limit."""
    parts: KeptParts = field(default_factory=KeptParts)


def remeshed(mesh: Mesh, rules: Remeshing, check_fits: CheckFits, cancel: CancelToken) -> Mesh:
    """Return one mesh, without a batch, made anew. Colors are those of the nearest points; nothing else stays attached.

    Raises what `check_fits` raises for the bytes of too many cells.
    """
    mesh = _clustered(mesh, rules.most_vertices)
    old_vertices, old_faces = _tensor(mesh.vertices).cpu().float(), _tensor(mesh.faces).cpu().long()
    if not len(old_faces):
        return mesh
    grid = Grid(rules.resolution, (rules.resolution + MARGIN * rules.band) / rules.resolution)
    near = NearTriangles(old_vertices[old_faces])
    reach = rules.band * grid.cell
    cells = cells_along(near, grid, reach, check_fits, cancel)
    if not len(cells):
        return _empty(mesh)
    vertices, triangles = _surface(near, grid, cells, reach, rules, cancel)
    colors = mesh.vertex_colors
    if rules.share_of_original or colors is not None:
        found = near.nearest(vertices, cancel)
        is_near = (found.distances < FARTHEST * grid.cell)[:, None]
        points = torch.where(is_near, found.points, vertices)
        if rules.share_of_original:
            vertices = torch.lerp(vertices, points, rules.share_of_original)
        if colors is not None:
            shares = shares_of(points, near.triangles[found.faces]).clamp(0, 1)
            own = _tensor(colors).cpu().float()[old_faces[found.faces]]
            colors = (shares[..., None] * own).sum(1) * is_near
    return _finished(mesh, vertices, triangles.numpy(), _maybe_tensor(colors), rules, cancel)


def _surface(
    near: NearTriangles, grid: Grid, cells: torch.Tensor, reach: float, rules: Remeshing, cancel: CancelToken
) -> tuple[torch.Tensor, torch.Tensor]:
    corners, index = corners_of(cells, grid.resolution)
    positions = grid.position(corners)
    found = near.nearest(positions, cancel)
    normals = _normals(near.triangles)
    if rules.is_signed:
        is_inside = ((positions - found.points) * normals[found.faces]).sum(1) < 0
        values = torch.where(is_inside, -found.distances, found.distances)
    else:
        values = found.distances - reach
    has_sheets = rules.is_signed and rules.has_sheets
    crossed: Crossings = crossings(cells, values[index], grid, zero_is_inside=has_sheets)
    if has_sheets:
        return contoured_sheets(crossed)

    def normals_at(points: torch.Tensor) -> torch.Tensor:
        return normals[near.nearest(points, cancel).faces]

    return contoured(crossed, normals_at if rules.has_sharp_edges else None)


def _finished(
    mesh: Mesh,
    vertices: torch.Tensor,
    faces: Indices,
    colors: torch.Tensor | None,
    rules: Remeshing,
    cancel: CancelToken,
) -> Mesh:
    """Return the mesh of a new surface, without the parts, poles and roughness that the rules exclude."""
    faces = kept_faces(vertices.numpy(), faces, rules.parts, cancel)
    if rules.without_poles and len(pairs := poles(faces, len(vertices))):
        colors = None if colors is None else merged_pairs(colors, faces, pairs)[0]
        vertices, faces = merged_pairs(vertices, faces, pairs)
    if rules.smoothing_rounds and len(faces):
        vertices = smoothed(vertices, faces, rules.smoothing_rounds, cancel)
    used, faces = compacted(faces, len(vertices))
    kept = torch.from_numpy(used)
    return replace(
        mesh,
        vertices=vertices[kept].to(_tensor(mesh.vertices)),
        faces=torch.from_numpy(np.ascontiguousarray(faces)).to(_tensor(mesh.faces)),
        vertex_colors=None if colors is None else colors[kept].to(_tensor(mesh.vertex_colors)),
    )


def _clustered(mesh: Mesh, most_vertices: int) -> Mesh:
    """Return the mesh with vertices of one cell merged, of a grid that leaves about `most_vertices`."""
    vertices = _tensor(mesh.vertices)
    if not most_vertices or len(vertices) <= most_vertices:
        return mesh
    longest = float((vertices.amax(0) - vertices.amin(0)).max())
    joined = welded(mesh, 0.0, absolute=longest / (CELLS_PER_VERTEX * most_vertices) ** (1 / 3))
    faces = without_degenerate(_tensor(joined.faces).cpu().numpy().astype(np.int64))
    return replace(joined, faces=torch.from_numpy(faces).to(_tensor(joined.faces)))


def _normals(triangles: torch.Tensor) -> torch.Tensor:
    first, second = triangles[:, 1] - triangles[:, 0], triangles[:, 2] - triangles[:, 0]
    return functional.normalize(torch.linalg.cross(first, second), dim=-1, eps=LEAST_NORM)


def _empty(mesh: Mesh) -> Mesh:
    colors = mesh.vertex_colors
    return replace(
        mesh,
        vertices=_tensor(mesh.vertices)[:0],
        faces=_tensor(mesh.faces)[:0],
        vertex_colors=None if colors is None else _tensor(colors)[:0],
    )


def _maybe_tensor(values: object) -> torch.Tensor | None:
    return None if values is None else _tensor(values)


def _tensor(values: object) -> torch.Tensor:
    assert isinstance(values, torch.Tensor)
    return values
