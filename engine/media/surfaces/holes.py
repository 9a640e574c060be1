"""Holes of meshes: loops of edges that belong to one triangle only, closed by fans of triangles.

`V` vertices, `E` edges of holes, `L` loops.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from darkroom.engine.media.mesh import Mesh
from darkroom.engine.media.surfaces.neighbours import connected
from darkroom.engine.media.surfaces.weld import welded

LARGEST_TOLERANCE, LEAST_NEXT_TOLERANCE = 1e-2, 1e-7  # of welding, as shares of the diagonal
LARGEST_VERTEX_FAN = 8  # vertices of a loop that is closed without a new vertex

Indices = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class HoleLimits:
    """Limits of the holes that are closed: length around them and number of vertices; also gaps in a loop or not."""

    max_perimeter: float
    max_vertices: int
    with_chains: bool = False


@dataclass(frozen=True, slots=True)
class _Loops:
    """Connected edges of holes. `edge_loop` [E] and `member_loop` [M] are indices of loops."""

    starts: Indices  # [E], in the direction of the edge's triangle
    ends: Indices
    edge_loop: Indices
    members: Indices  # [M], vertices of loops, in order of loops
    member_loop: Indices
    num_vertices: Indices  # [L]


def filled(mesh: Mesh, limits: HoleLimits, weld_tolerance: float) -> Mesh:
    """Close the holes of one mesh, without a batch, after welding it: triangles of their own share no edges.

    A loop of up to eight vertices becomes a fan from its first vertex, a longer one a fan from its middle.
    """
    if not len(mesh.faces):
        return mesh
    joined = _well_welded(mesh, weld_tolerance) if weld_tolerance > 0 else mesh
    loops = _loops(joined)
    return joined if loops is None else _closed(joined, loops, limits)


def _well_welded(mesh: Mesh, tolerance: float) -> Mesh:
    """Weld with growing tolerance until there are fewer vertices than triangles."""
    while True:
        mesh = welded(mesh, tolerance)
        if len(mesh.vertices) < len(mesh.faces) or tolerance >= LARGEST_TOLERANCE:
            return mesh
        tolerance = min(max(tolerance * 2, LEAST_NEXT_TOLERANCE), LARGEST_TOLERANCE)


def _loops(mesh: Mesh) -> _Loops | None:
    """Return the loops in the order of their first vertices, or None for a closed mesh."""
    assert isinstance(mesh.faces, torch.Tensor)
    faces = mesh.faces.cpu().numpy().astype(np.int64)
    edges = np.concatenate([faces[:, [0, 1]], faces[:, [1, 2]], faces[:, [2, 0]]])
    keys = edges.min(1) * len(mesh.vertices) + edges.max(1)
    _, inverse, counts = np.unique(keys, return_inverse=True, return_counts=True)
    open_edges = edges[counts[inverse] == 1]
    if not len(open_edges):
        return None
    vertices, compact = np.unique(open_edges, return_inverse=True)
    compact = compact.reshape(-1, 2)
    label = connected(len(vertices), compact[:, 0], compact[:, 1])
    order = np.argsort(label, kind="stable")
    return _Loops(
        starts=open_edges[:, 0],
        ends=open_edges[:, 1],
        edge_loop=label[compact[:, 0]],
        members=vertices[order],
        member_loop=label[order],
        num_vertices=np.bincount(label),
    )


def _closed(mesh: Mesh, loops: _Loops, limits: HoleLimits) -> Mesh:
    vertices = _array(mesh.vertices)
    chosen = _chosen(vertices, loops, limits)
    has_middle = chosen & (loops.num_vertices > LARGEST_VERTEX_FAN)
    middle = np.where(has_middle, len(vertices) + np.cumsum(has_middle) - 1, -1)  # [L]
    fans = [_fan(loops, has_middle, middle), _fan(loops, chosen & ~has_middle, _first_vertices(loops))]
    if limits.with_chains:
        fans.append(_chain_ends(loops, has_middle, middle, len(vertices)))
    added = np.concatenate(fans)
    if not len(added):
        return mesh
    assert isinstance(mesh.faces, torch.Tensor)
    colors = mesh.vertex_colors
    return replace(
        mesh,
        vertices=_with_middles(mesh.vertices, loops, has_middle),
        faces=torch.cat((mesh.faces, torch.from_numpy(added).to(mesh.faces))),
        vertex_colors=None if colors is None else _with_middles(colors, loops, has_middle),
    )


def _chosen(vertices: NDArray[np.float32], loops: _Loops, limits: HoleLimits) -> NDArray[np.bool_]:
    """Return the mask [L] of loops to close."""
    lengths = np.linalg.norm(vertices[loops.starts] - vertices[loops.ends], axis=1)
    perimeter = np.bincount(loops.edge_loop, weights=lengths, minlength=len(loops.num_vertices))
    chosen: NDArray[np.bool_] = (loops.num_vertices >= 3) & (loops.num_vertices <= limits.max_vertices)
    chosen &= perimeter < limits.max_perimeter
    if limits.with_chains:
        return chosen
    is_cycle: NDArray[np.bool_] = np.bincount(loops.edge_loop, minlength=len(chosen)) == loops.num_vertices
    return chosen & is_cycle


def _first_vertices(loops: _Loops) -> Indices:
    """Return the vertex [L] of the lowest index of each loop."""
    first = np.unique(loops.member_loop, return_index=True)[1]
    return loops.members[first]


def _fan(loops: _Loops, chosen: NDArray[np.bool_], apex: Indices) -> Indices:
    """Return triangles [F, 3] between each edge of the chosen loops and the apex [L] of its loop, facing outwards."""
    apexes = apex[loops.edge_loop]
    kept = chosen[loops.edge_loop] & (loops.starts != apexes) & (loops.ends != apexes)
    return np.stack([loops.ends[kept], loops.starts[kept], apexes[kept]], axis=1)


def _chain_ends(loops: _Loops, has_middle: NDArray[np.bool_], middle: Indices, num_vertices: int) -> Indices:
    """Return the triangle that closes each loop with one gap: its two ends and its middle."""
    degree = np.bincount(np.concatenate([loops.starts, loops.ends]), minlength=num_vertices)
    is_end = (degree[loops.members] == 1) & has_middle[loops.member_loop]
    owners = loops.member_loop[is_end]
    is_pair = np.bincount(owners, minlength=len(has_middle))[owners] == 2
    pairs, owners = loops.members[is_end][is_pair].reshape(-1, 2), owners[is_pair][::2]
    return np.concatenate([pairs, middle[owners][:, None]], axis=1)


def _with_middles(values: object, loops: _Loops, has_middle: NDArray[np.bool_]) -> torch.Tensor:
    """Return values [V, C] with the means of the loops that get a vertex in their middle behind them."""
    assert isinstance(values, torch.Tensor)
    own = _array(values)
    sums = np.stack(
        [
            np.bincount(loops.member_loop, weights=own[loops.members, channel], minlength=len(has_middle))
            for channel in range(own.shape[1])
        ],
        axis=1,
    )
    means = sums / loops.num_vertices[:, None]
    return torch.cat((values, torch.from_numpy(means[has_middle]).to(values)))


def _array(values: object) -> NDArray[np.float32]:
    assert isinstance(values, torch.Tensor)
    array: NDArray[np.float32] = values.detach().cpu().float().numpy()
    return array
