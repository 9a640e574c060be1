"""Rays and nearest points, compared with the search through all triangles."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from darkroom.engine.cancel import CancelToken
from darkroom.engine.media.surfaces.ray_tree import RayTree, nearest_in_triangles

REACH = (1e-5, 1e30)


class CountedSteps(CancelToken):
    """A token that counts how often it is asked: once for each step of a search."""

    num_steps = 0

    def check(self) -> None:
        self.num_steps += 1


@pytest.mark.parametrize("count", [1, 2, 37])
def test_nearest_points_are_those_of_all_triangles(count: int) -> None:
    generator = torch.Generator().manual_seed(count)
    triangles, points = torch.rand(count, 3, 3, generator=generator), torch.randn(50, 3, generator=generator)
    found, faces = RayTree(triangles).nearest(points, CancelToken())
    pairs = nearest_in_triangles(points.repeat_interleave(count, 0), triangles.repeat(50, 1, 1)).reshape(50, count, 3)
    distances = (pairs - points[:, None]).norm(dim=2)
    assert torch.allclose((found - points).norm(dim=1), distances.min(1).values)
    assert torch.equal(distances.gather(1, faces[:, None])[:, 0], distances.min(1).values)


def test_first_hits_are_those_of_each_triangle_alone() -> None:
    generator = torch.Generator().manual_seed(0)
    triangles = torch.rand(60, 3, 3, generator=generator)
    origins = torch.full((200, 3), -1.0)
    directions = functional.normalize(torch.rand(200, 3, generator=generator), dim=1)
    found = RayTree(triangles).first_hits(origins, directions, REACH, CancelToken())
    alone = [RayTree(one[None]).first_hits(origins, directions, REACH, CancelToken()).distances for one in triangles]
    assert torch.equal(found.distances, torch.stack(alone).min(0).values)
    assert 0 < int((found.faces >= 0).sum()) < 200
    blocked = RayTree(triangles).are_blocked(origins, directions, REACH, CancelToken())
    assert torch.equal(blocked, found.faces >= 0)


def test_ray_from_behind_is_blocked_unless_only_fronts_count() -> None:
    tree = RayTree(torch.tensor([[[0.0, 0, 0], [1, 0, 0], [0, 1, 0]]]))  # faces +z
    below, up = torch.tensor([[0.2, 0.2, -1]]), torch.tensor([[0.0, 0, 1]])
    assert tree.first_hits(below, up, REACH, CancelToken()).faces.tolist() == [0]
    assert tree.first_hits(below, up, REACH, CancelToken(), from_front=True).faces.tolist() == [-1]
    assert (
        tree.first_hits(-below * torch.tensor([-1.0, -1, 1]), -up, REACH, CancelToken(), from_front=True).faces[0] == 0
    )


def test_reach_ends_a_ray() -> None:
    tree = RayTree(torch.tensor([[[0.0, 0, 0], [1, 0, 0], [0, 1, 0]]]))
    below, up = torch.tensor([[0.2, 0.2, -1]]), torch.tensor([[0.0, 0, 1]])
    assert not tree.are_blocked(below, up, (0.0, 0.9), CancelToken()).any()


def test_leaves_that_fill_the_tree_up_are_not_searched() -> None:
    """33 triangles have 64 leaves; rays and points beside the last triangle enter its box."""
    corners = torch.tensor([[0.0, 0, 0], [1, 0, 0], [0, 1, 0]]) + torch.arange(33.0)[:, None, None] * 2
    tree, steps = RayTree(corners), CountedSteps()
    beside, up = torch.tensor([[64.9, 64.9, 63.0]]), torch.tensor([[0.0, 0, 1]])
    assert tree.first_hits(beside, up, REACH, steps).faces.tolist() == [-1]
    assert tree.nearest(beside, steps)[1].tolist() == [32]
    assert steps.num_steps < 40


def test_nearer_child_is_searched_first() -> None:
    """A ray from either side of 64 parallel triangles meets the first after about one descent."""
    corners = torch.tensor([[0.0, 0, 0], [4, 0, 0], [0, 4, 0]]) + torch.arange(64.0)[:, None, None] * torch.eye(3)[2]
    for start, direction, face in ((-1.0, 1.0, 0), (64.0, -1.0, 63)):
        steps = CountedSteps()
        hits = RayTree(corners).first_hits(
            torch.tensor([[1.0, 1, start]]), torch.tensor([[0.0, 0, direction]]), REACH, steps
        )
        assert hits.faces.tolist() == [face] and hits.distances.tolist() == [1.0]
        assert steps.num_steps < 20


def test_more_rays_than_hours_allow_are_refused() -> None:
    tree = RayTree(torch.rand(5, 3, 3))
    tree.check_searches("resolution", 1 << 24)
    with pytest.raises(ValueError, match="resolution: too many rays; got 1099511627776 rays at 5 triangles"):
        tree.check_searches("resolution", 1 << 40)
