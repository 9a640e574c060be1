"""Surfaces of voxels: how many corners and triangles they have, which way these face."""

from __future__ import annotations

import pytest
import torch

from darkroom.engine.media.meshes import cubes, surface_net


def ball(side: int) -> torch.Tensor:
    """Voxels that fall off from 1 in the middle of a grid to 0 at its edges."""
    axis = torch.linspace(-1, 1, side)
    z, y, x = torch.meshgrid(axis, axis, axis, indexing="ij")
    return (1.0 - (z**2 + y**2 + x**2).sqrt()).clamp(min=0.0)


def volume(corners: torch.Tensor, triangles: torch.Tensor) -> float:
    """The volume that triangles enclose, positive where they face outwards."""
    a, b, c = corners[triangles].double().unbind(1)
    return float((a * torch.linalg.cross(b, c)).sum() / 6)


def test_a_voxel_has_six_faces() -> None:
    voxels = torch.zeros(3, 3, 3)
    voxels[1, 1, 1] = 1.0
    corners, triangles = cubes(voxels, 0.5)
    assert corners.shape == (24, 3) and triangles.shape == (12, 3)
    assert corners.abs().max() == pytest.approx(1 / 3)
    assert abs(volume(corners, triangles)) == pytest.approx((2 / 3) ** 3, rel=1e-5)


def test_faces_between_voxels_of_a_shape_are_left_out() -> None:
    voxels = torch.zeros(4, 4, 4)
    voxels[1:3, 1, 1] = 1.0
    assert len(cubes(voxels, 0.5)[1]) == 20


def test_a_surface_net_is_closed_and_has_the_volume_of_the_shape() -> None:
    corners, triangles = surface_net(ball(24), 0.4)
    edges = torch.cat([triangles[:, [0, 1]], triangles[:, [1, 2]], triangles[:, [2, 0]]])
    _, counts = torch.unique(edges.sort(1).values, dim=0, return_counts=True)
    assert (counts == 2).all()  # every edge is of two triangles
    assert abs(volume(corners, triangles)) == pytest.approx(4 / 3 * torch.pi * 0.6**3 * (23 / 24) ** 3, rel=0.05)
    assert len(corners) == len(triangles) // 2 + 2  # Euler's number of a sphere


@pytest.mark.parametrize("surface", [cubes, surface_net])
def test_voxels_below_the_threshold_are_refused(surface: type) -> None:
    with pytest.raises(ValueError, match="nothing is above the threshold; got at most 0.25, expected more than 0.6"):
        surface(torch.full((4, 4, 4), 0.25), 0.6)
