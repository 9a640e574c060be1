"""Meshes of images whose pixels are points in space."""

from __future__ import annotations

import torch

from darkroom.engine.media.surfaces.grid_mesh import depth_edges, grid_mesh


def plane(height: int = 4, width: int = 5) -> torch.Tensor:
    rows, columns = torch.meshgrid(torch.arange(float(height)), torch.arange(float(width)), indexing="ij")
    return torch.stack((columns, rows, torch.ones(height, width)), dim=-1)


def test_two_triangles_join_four_corners() -> None:
    points = plane()
    corners, faces, places = grid_mesh(points, points[..., 2], 1, 0.0)
    torch.testing.assert_close(corners, points.flatten(0, 1))
    assert len(faces) == 2 * 3 * 4 and faces[0].tolist() == [0, 1, 6] and faces[12].tolist() == [0, 6, 5]
    assert places[-1].tolist() == [1.0, 1.0] and places[1].tolist() == [0.25, 0.0]


def test_points_that_are_not_finite_leave_a_hole() -> None:
    points = plane()
    points[1, 1] = torch.inf
    corners, faces, _ = grid_mesh(points, points[..., 2], 1, 0.0)
    assert len(corners) == 19 and len(faces) == 2 * (3 * 4 - 4)
    assert corners.isfinite().all() and faces.max() == 18


def test_a_stride_leaves_corners_out() -> None:
    points = plane(5, 9)
    corners, faces, _ = grid_mesh(points, points[..., 2], 4, 0.0)
    assert corners[:, 0].tolist() == [0, 4, 8, 0, 4, 8] and len(faces) == 4


def test_edges_of_depth_are_cut() -> None:
    points = plane(6, 8)
    points[:, 4:, 2] = 2.0
    assert depth_edges(points[..., 2], 0.04).any(dim=0).tolist() == [False] * 3 + [True] * 2 + [False] * 3
    _, faces, _ = grid_mesh(points, points[..., 2], 1, 0.04)
    assert len(faces) == 2 * 5 * (2 + 2)
