"""A tree of boxes around triangles, for rays and nearest points.

`F` triangles [F, 3, 3], `R` rays or points. Leaves are triangles in the order of Morton's curve (G. M. Morton, 1966),
with empty boxes up to a power of two; node i has the children 2i and 2i + 1, the root is 1. A search holds one node for
each ray: after it comes its nearer child where the ray enters its box, else the next node aside (no stack). The turn of
a node is the index that it would have if the nearer child were always the left one.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from darkroom.engine.cancel import CancelToken
from darkroom.engine.media.surfaces.neighbours import nearest_index

BITS = 21  # of each axis on the curve
SPREADS = ((32, 0x1F00000000FFFF), (16, 0x1F0000FF0000FF), (8, 0x100F00F00F00F00F), (4, 0x10C30C30C30C30C3))
LAST_SPREAD = (2, 0x1249249249249249)
LEAST = 1e-20
RAYS_AT_ONCE = 1 << 18
EVER = 1e30
MAX_DESCENTS = 1 << 31  # searches times levels of a tree: hours of a core; 64 rays for 1024 x 1024 texels are fewer


@dataclass(frozen=True, slots=True)
class Hits:
    """First hits of rays on a surface: distances [R] in lengths of the direction, and triangles [R], -1 for a miss."""

    distances: torch.Tensor
    faces: torch.Tensor


class RayTree:
    """Boxes around triangles [F, 3, 3], float32, at least one, built in F log F."""

    def __init__(self, triangles: torch.Tensor) -> None:
        self.triangles = triangles
        low, high = triangles.amin(1), triangles.amax(1)
        order = _curve((low + high) / 2).argsort()
        self._first_leaf = 1 << (len(triangles) - 1).bit_length()
        self._order = order
        low, high = (self._of_nodes(box[order], empty) for box, empty in ((low, torch.inf), (high, -torch.inf)))
        level = self._first_leaf // 2
        while level:
            children = slice(2 * level, 4 * level)
            low[level : 2 * level] = low[children].reshape(level, 2, 3).amin(1)
            high[level : 2 * level] = high[children].reshape(level, 2, 3).amax(1)
            level //= 2
        low[low > high] = torch.nan  # compares as false: an empty box is never entered
        left, right = ((low + high) / 2).reshape(-1, 2, 3).unbind(1)
        apart = torch.cat((right - left, torch.zeros_like(left)))  # from the left child to the right one
        self._nodes = torch.cat((low, high, apart), dim=1)  # one row for each node: found at once

    def _of_nodes(self, leaves: torch.Tensor, empty: float) -> torch.Tensor:
        """Return values [2L, 3] of all nodes, those of the leaves at their positions."""
        values = leaves.new_full((2 * self._first_leaf, 3), empty)
        values[self._first_leaf : self._first_leaf + len(leaves)] = leaves
        return values

    def check_searches(self, name: str, count: int) -> None:
        """Raise ValueError for more rays than the tree is searched for in hours. `name` is that of the inputs."""
        allowed = MAX_DESCENTS // self._first_leaf.bit_length()
        if count > allowed:
            found = f"{count} rays at {len(self.triangles)} triangles"
            raise ValueError(f"{name}: too many rays; got {found}, expected at most {allowed} rays")

    def first_hits(
        self,
        origins: torch.Tensor,
        directions: torch.Tensor,
        reach: tuple[float, float],
        cancel: CancelToken,
        *,
        from_front: bool = False,
    ) -> Hits:
        """Return the nearest triangles that rays [R, 3] meet within a reach; with `from_front` of those facing them."""
        parts = []
        for start in range(0, len(origins), RAYS_AT_ONCE):
            part = slice(start, start + RAYS_AT_ONCE)
            parts.append(self._walk_rays(origins[part], directions[part], reach, cancel, from_front, any_hit=False))
        return Hits(torch.cat([part.distances for part in parts]), torch.cat([part.faces for part in parts]))

    def are_blocked(
        self, origins: torch.Tensor, directions: torch.Tensor, reach: tuple[float, float], cancel: CancelToken
    ) -> torch.Tensor:
        """Return the mask [R] of rays [R, 3] that meet any triangle within a reach."""
        return self._walk_rays(origins, directions, reach, cancel, from_front=False, any_hit=True).faces >= 0

    def nearest(self, points: torch.Tensor, cancel: CancelToken) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the nearest points [R, 3] on the surface to points [R, 3], and their triangles [R]."""
        middles = self.triangles.mean(1).numpy()
        near = torch.from_numpy(nearest_index(middles, points.numpy()))
        found = [torch.zeros(0, 3)], [torch.zeros(0, dtype=torch.long)]
        for start in range(0, len(points), RAYS_AT_ONCE):
            part = slice(start, start + RAYS_AT_ONCE)
            on_surface, faces = self._walk_points(points[part], near[part], cancel)
            found[0].append(on_surface)
            found[1].append(faces)
        return torch.cat(found[0]), torch.cat(found[1])

    def _walk_rays(
        self,
        origins: torch.Tensor,
        directions: torch.Tensor,
        reach: tuple[float, float],
        cancel: CancelToken,
        from_front: bool,
        *,
        any_hit: bool,
    ) -> Hits:
        near, far = reach
        inverse = 1.0 / torch.where(directions.abs() < LEAST, LEAST, directions)
        best, faces = torch.full((len(origins),), far), torch.full((len(origins),), -1)
        rays_of = torch.cat((origins, inverse, directions), dim=1)
        active, nodes, turns = _all_at_root(len(origins))
        while len(active):
            cancel.check()
            low, high, apart = self._nodes.index_select(0, nodes).chunk(3, dim=1)
            origin, slope, direction = rays_of.index_select(0, active).chunk(3, dim=1)
            to_low, to_high = (low - origin) * slope, (high - origin) * slope
            enter = torch.minimum(to_low, to_high).amax(1).clamp(min=near)
            enters = (enter <= torch.maximum(to_low, to_high).amin(1)) & (enter < best.index_select(0, active))
            at_leaf = (enters & (nodes >= self._first_leaf)).nonzero()[:, 0]
            if len(at_leaf):
                rays = active[at_leaf]
                candidates = self._order[nodes[at_leaf] - self._first_leaf]
                triangles = self.triangles[candidates]
                distances = _meetings(origins[rays], directions[rays], triangles, near, from_front=from_front)
                is_nearer = distances < best[rays]
                best[rays[is_nearer]], faces[rays[is_nearer]] = distances[is_nearer], candidates[is_nearer]
            goes_on, nodes, turns = self._next(nodes, turns, enters, (apart * direction).sum(1) < 0)
            if any_hit:
                goes_on &= faces.index_select(0, active) < 0
            active, nodes, turns = active[goes_on], nodes[goes_on], turns[goes_on]
        return Hits(best, faces)

    def _walk_points(
        self, points: torch.Tensor, faces: torch.Tensor, cancel: CancelToken
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the nearest points, starting from those on triangles [R] that are near."""
        best_points = nearest_in_triangles(points, self.triangles[faces])
        best = (best_points - points).square().sum(1)
        active, nodes, turns = _all_at_root(len(points))
        while len(active):
            cancel.check()
            low, high, apart = self._nodes.index_select(0, nodes).chunk(3, dim=1)
            own = points.index_select(0, active)
            outside = (low - own).clamp(min=0) + (own - high).clamp(min=0)
            enters = outside.square().sum(1) < best.index_select(0, active)
            at_leaf = (enters & (nodes >= self._first_leaf)).nonzero()[:, 0]
            if len(at_leaf):
                rays = active[at_leaf]
                candidates = self._order[nodes[at_leaf] - self._first_leaf]
                found = nearest_in_triangles(points[rays], self.triangles[candidates])
                distances = (found - points[rays]).square().sum(1)
                is_nearer = distances < best[rays]
                best[rays[is_nearer]], faces[rays[is_nearer]] = distances[is_nearer], candidates[is_nearer]
                best_points[rays[is_nearer]] = found[is_nearer]
            is_left_farther = (apart * ((low + high) / 2 - own)).sum(1) < 0
            goes_on, nodes, turns = self._next(nodes, turns, enters, is_left_farther)
            active, nodes, turns = active[goes_on], nodes[goes_on], turns[goes_on]
        return best_points, faces

    def _next(
        self, nodes: torch.Tensor, turns: torch.Tensor, enters: torch.Tensor, is_left_farther: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the mask of searches that go on, and their next nodes and turns."""
        aside = turns + 1
        steps = aside & -aside  # 2 for each level up, as long as it was the farther child
        goes_down = enters & (nodes < self._first_leaf)
        nodes = torch.where(goes_down, nodes * 2 + is_left_farther, (nodes // steps) ^ 1)
        turns = torch.where(goes_down, turns * 2, aside // steps)
        return turns > 1, nodes, turns


def _all_at_root(count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the searches [count] that go on, and their nodes and turns: all, at the root."""
    return torch.arange(count), torch.ones(count, dtype=torch.long), torch.ones(count, dtype=torch.long)


def nearest_in_triangles(points: torch.Tensor, triangles: torch.Tensor) -> torch.Tensor:
    """Return the nearest point [N, 3] of each triangle [N, 3, 3] to a point [N, 3]: inside, or on one of the edges."""
    shares = shares_of(points, triangles)
    inside = (shares >= 0).all(1)
    best = (shares[:, :, None] * triangles).sum(1)
    distance = torch.where(inside, (best - points).square().sum(1), EVER)
    for corner in range(3):
        start, side = triangles[:, corner], triangles[:, (corner + 1) % 3] - triangles[:, corner]
        share = ((points - start) * side).sum(1) / side.square().sum(1).clamp(min=LEAST)
        on_edge = start + share.clamp(0, 1)[:, None] * side
        to_edge = (on_edge - points).square().sum(1)
        is_nearer = to_edge < distance
        best, distance = torch.where(is_nearer[:, None], on_edge, best), torch.where(is_nearer, to_edge, distance)
    return best


def shares_of(points: torch.Tensor, triangles: torch.Tensor) -> torch.Tensor:
    """Return barycentric coordinates [N, 3] of points [N, 3], projected onto the planes of triangles [N, 3, 3]."""
    first, second, third = (
        triangles[:, 1] - triangles[:, 0],
        triangles[:, 2] - triangles[:, 0],
        points - triangles[:, 0],
    )
    aa, ab, bb = ((first * first).sum(1), (first * second).sum(1), (second * second).sum(1))
    pa, pb = (third * first).sum(1), (third * second).sum(1)
    area = aa * bb - ab * ab
    area = torch.where(area.abs() < LEAST, LEAST, area)
    v, w = (bb * pa - ab * pb) / area, (aa * pb - ab * pa) / area
    return torch.stack([1.0 - v - w, v, w], dim=1)


def _meetings(
    origins: torch.Tensor, directions: torch.Tensor, triangles: torch.Tensor, near: float, *, from_front: bool
) -> torch.Tensor:
    """Return the distances [N] at which rays meet triangles [N, 3, 3], without end for a miss.

    T. Möller, B. Trumbore, "Fast, minimum storage ray/triangle intersection", 1997.
    """
    first, second = triangles[:, 1] - triangles[:, 0], triangles[:, 2] - triangles[:, 0]
    across = torch.linalg.cross(directions, second)
    determinant = (first * across).sum(1)
    is_plane = determinant.abs() > LEAST
    inverse = 1.0 / torch.where(is_plane, determinant, LEAST)
    offset = origins - triangles[:, 0]
    u = (offset * across).sum(1) * inverse
    up = torch.linalg.cross(offset, first)
    v = (directions * up).sum(1) * inverse
    distances = (second * up).sum(1) * inverse
    meets = is_plane & (u >= 0) & (v >= 0) & (u + v <= 1) & (distances > near)
    if from_front:
        meets &= determinant > 0  # the normal is against the ray
    return torch.where(meets, distances, torch.inf)


def _curve(points: torch.Tensor) -> torch.Tensor:
    """Return the positions [F] of points [F, 3] on Morton's curve through their bounding box."""
    least = points.amin(0)
    shares = (points - least) / (points.amax(0) - least).clamp(min=1e-12)
    cells = (shares * ((1 << BITS) - 1)).long().clamp(0, (1 << BITS) - 1)
    for shift, mask in (*SPREADS, LAST_SPREAD):
        cells = (cells | (cells << shift)) & mask
    return cells[:, 0] << 2 | cells[:, 1] << 1 | cells[:, 2]
