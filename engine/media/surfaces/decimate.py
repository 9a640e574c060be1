"""Meshes of fewer triangles: edges become vertices, those first that change the surface least.

Garland and Heckbert, "Surface simplification using quadric error metrics", 1997; a round collapses all edges that are
the cheapest within the triangles around them, as parallel versions do, so that it takes some tens of linear rounds.
`V` vertices, `F` triangles, `E` edges, `C` chosen edges.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray

from darkroom.engine.cancel import CancelToken
from darkroom.engine.media.mesh import Mesh
from darkroom.engine.media.surfaces.edges import Edges, Indices, compacted, edges_of, without_degenerate
from darkroom.engine.media.surfaces.neighbours import connected
from darkroom.engine.media.surfaces.quadrics import Floats, Placement, costs, placed, unit_normals, vertex_quadrics
from darkroom.engine.media.surfaces.weld import welded

WELD_TOLERANCE = 1e-5  # of the diagonal
MAX_ROUNDS = 500  # a mesh whose edges all meet at one vertex loses two triangles a round
SHARE_AT_ONCE = 0.25  # of the triangles still to be removed
LEAST_AT_ONCE = 1000
LENGTH_WEIGHT = 1e-2  # of an edge's squared length in its cost, so that flat parts lose short edges first
STEPS_OF_COST = 2  # for each doubling
LEAST_COST = 1e-30
SCATTER, SCATTERED = 2654435761, 1 << 32  # Knuth's multiplicative hash
LEAST_PART = 8  # triangles of a part that is kept
BYTES_PER_FACE = 1400  # while a mesh is decimated: quadrics of its vertices and edges

Mask = NDArray[np.bool_]


@dataclass
class _Surface:
    """The mesh while it shrinks. Removed vertices stay in place, unused. `barred` has keys of edges that must stay."""

    vertices: Floats
    faces: Indices
    colors: Floats | None
    quadrics: Floats | None = None
    barred: Indices = field(default_factory=lambda: np.zeros(0, np.int64))


def decimated(mesh: Mesh, target: int, placement: Placement, cancel: CancelToken) -> Mesh:
    """Return one mesh, without a batch, of at most `target` triangles where its edges allow that, welded.

    Colors are means of those of the vertices that became one. Only colors stay attached.
    """
    assert isinstance(mesh.vertices, torch.Tensor)
    assert isinstance(mesh.faces, torch.Tensor)
    if len(mesh.faces) <= target:
        return mesh
    joined = welded(mesh, WELD_TOLERANCE)
    assert isinstance(joined.vertices, torch.Tensor)
    assert isinstance(joined.faces, torch.Tensor)
    faces = without_degenerate(joined.faces.cpu().numpy().astype(np.int64))
    colors = joined.vertex_colors
    surface = _Surface(
        joined.vertices.cpu().numpy().astype(np.float64),
        faces,
        colors.cpu().numpy().astype(np.float64) if isinstance(colors, torch.Tensor) else None,
    )
    for _ in range(MAX_ROUNDS):
        cancel.check()
        if len(surface.faces) <= target or not _shrink(surface, target, placement):
            break
    return _as_mesh(mesh, surface)


def _shrink(surface: _Surface, target: int, placement: Placement) -> bool:
    """Collapse edges in one round. Return False where none is left that may become a vertex."""
    vertices, faces = surface.vertices, surface.faces
    edges = edges_of(faces, len(vertices))
    keys = edges.ends[:, 0] * len(vertices) + edges.ends[:, 1]
    allowed = (edges.num_faces <= 2) & ~np.isin(keys, surface.barred)
    if surface.quadrics is None:
        surface.quadrics = vertex_quadrics(vertices, faces, edges, placement)
    quadrics = surface.quadrics[edges.ends[:, 0]] + surface.quadrics[edges.ends[:, 1]]
    points = placed(vertices, edges.ends, quadrics, edges.is_rim(len(vertices)), placement)
    length_2 = ((vertices[edges.ends[:, 0]] - vertices[edges.ends[:, 1]]) ** 2).sum(1)
    cost = np.where(allowed, costs(points, quadrics) + LENGTH_WEIGHT * length_2, np.inf)
    chosen = _cheapest_around(cost, edges, faces, len(vertices))
    chosen = chosen[: max(int((len(faces) - target) / 2 * SHARE_AT_ONCE), min(LEAST_AT_ONCE, _half(faces, target)))]
    if not len(chosen):
        return False
    good = _keeps_topology(edges, chosen, len(vertices)) & _keeps_sides(surface, edges, chosen, points[chosen])
    _collapse(surface, edges.ends[chosen[good]], points[chosen[good]], keeps_quadrics=placement.at_best_point)
    surface.barred = np.concatenate([surface.barred, keys[chosen[~good]]])
    return True


def _half(faces: Indices, target: int) -> int:
    """Return the number of collapses that leave `target` triangles: each removes two."""
    return (len(faces) - target + 1) // 2


def _cheapest_around(cost: Floats, edges: Edges, faces: Indices, num_vertices: int) -> Indices:
    """Return edges [C], cheapest first, of which no two share a triangle with a vertex of the other.

    Costs of one step are equal, and edges of equal cost in a scattered order: in an order along the surface most of
    them would have a cheaper neighbour, and few be chosen.
    """
    allowed = np.isfinite(cost).nonzero()[0]
    steps = np.floor(np.log2(np.maximum(cost[allowed], LEAST_COST)) * STEPS_OF_COST).astype(np.int64)
    order = allowed[np.lexsort((allowed * SCATTER % SCATTERED, steps))]
    rank = np.full(len(cost), len(cost), np.int64)
    rank[order] = np.arange(len(order))
    near = np.full(num_vertices, len(cost), np.int64)
    for end in (0, 1):
        np.minimum.at(near, edges.ends[:, end], rank)
    of_faces = near[faces].min(axis=1)
    around = np.full(num_vertices, len(cost), np.int64)
    for corner in range(3):
        np.minimum.at(around, faces[:, corner], of_faces)
    is_least = (around[edges.ends] == rank[:, None]).all(axis=1)
    chosen: Indices = order[is_least[order]]
    return chosen


def _keeps_topology(edges: Edges, chosen: Indices, num_vertices: int) -> Mask:
    """Return the mask [C] of edges whose ends have no neighbours in common but across the edge's own triangles."""
    from scipy.sparse import coo_matrix  # type: ignore[import-untyped]

    both = np.concatenate([edges.ends, edges.ends[:, ::-1]])
    near = coo_matrix((np.ones(len(both), np.int32), both.T), shape=(num_vertices, num_vertices)).tocsr()
    starts, ends = edges.ends[chosen].T
    common = np.asarray(near[starts].multiply(near[ends]).sum(axis=1)).ravel()
    kept: Mask = common == edges.num_faces[chosen]
    return kept


def _keeps_sides(surface: _Surface, edges: Edges, chosen: Indices, points: Floats) -> Mask:
    """Return the mask [C] of edges that turn no triangle around them over when they become a point [C, 3]."""
    vertices, faces = surface.vertices, surface.faces
    owner = np.full(len(vertices), -1, np.int64)
    owner[edges.ends[chosen]] = np.arange(len(chosen))[:, None]
    owners = owner[faces]
    moved = faces[((owners >= 0).sum(axis=1) == 1).nonzero()[0]]
    moved_owner = owner[moved].max(axis=1)
    after = vertices.copy()
    after[edges.ends[chosen]] = points[:, None]
    turned = (unit_normals(vertices, moved) * unit_normals(after, moved)).sum(axis=1) <= 0
    kept = np.ones(len(chosen), bool)
    kept[moved_owner[turned]] = False
    return kept


def _collapse(surface: _Surface, ends: Indices, points: Floats, *, keeps_quadrics: bool) -> None:
    """Make one vertex of each edge [C, 2], at a point [C, 3], and drop the triangles that lose a side."""
    kept, dropped = ends.T
    num_vertices = len(surface.vertices)
    surface.vertices[kept] = points
    if surface.colors is not None:
        surface.colors[kept] = (surface.colors[kept] + surface.colors[dropped]) / 2
    if keeps_quadrics and surface.quadrics is not None:
        surface.quadrics[kept] += surface.quadrics[dropped]
    else:
        surface.quadrics = None
    target = np.arange(num_vertices)
    target[dropped] = kept
    is_near = np.zeros(num_vertices, bool)
    is_near[ends] = True
    near_faces = is_near[surface.faces].any(axis=1)
    is_near[surface.faces[near_faces]] = True
    surface.faces = without_degenerate(target[surface.faces])
    changed = is_near[surface.barred // num_vertices] | is_near[surface.barred % num_vertices]
    surface.barred = surface.barred[~changed]


def _as_mesh(mesh: Mesh, surface: _Surface) -> Mesh:
    """Return the mesh without parts of a few triangles, and without unused vertices."""
    assert isinstance(mesh.vertices, torch.Tensor)
    assert isinstance(mesh.faces, torch.Tensor)
    faces = surface.faces
    if len(faces):
        part = connected(len(surface.vertices), *np.concatenate([faces[:, :2], faces[:, 1:]]).T)
        is_large = np.bincount(part[faces[:, 0]], minlength=len(surface.vertices)) >= LEAST_PART
        if is_large.any():
            faces = faces[is_large[part[faces[:, 0]]]]
    used, faces = compacted(faces, len(surface.vertices))
    colors = surface.colors
    return replace(
        mesh,
        vertices=torch.from_numpy(surface.vertices[used]).to(mesh.vertices),
        faces=torch.from_numpy(faces).to(mesh.faces),
        vertex_colors=None if colors is None else torch.from_numpy(colors[used]).to(mesh.vertices),
    )
