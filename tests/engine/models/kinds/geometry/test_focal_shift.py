"""Focal length and distance by points: a known camera is found again."""

from __future__ import annotations

import pytest
import torch

from darkroom.engine.models.kinds.geometry.focal_shift import focal_and_shift, focal_of
from darkroom.engine.models.kinds.geometry.moge_layers import plane_of


def seen(focal: float, shift: float, height: int = 50, width: int = 80) -> torch.Tensor:
    """Points of a camera whose depth lacks `shift`."""
    depth = torch.rand(height, width, generator=torch.Generator().manual_seed(0)) + shift + 0.5
    right, down = plane_of(height, width, width / height, depth)
    return torch.stack((right * depth / focal, down * depth / focal, depth - shift), dim=-1)[None]


@pytest.mark.parametrize(("focal", "shift"), [(1.3, 1.5), (0.7, 0.4)])
def test_a_known_camera_is_found(focal: float, shift: float) -> None:
    points = seen(focal, shift)
    found = focal_and_shift(points, torch.ones(points.shape[:3], dtype=torch.bool), None)
    torch.testing.assert_close(torch.stack(found), torch.tensor([[focal], [shift]]), atol=1e-3, rtol=0)


def test_a_known_angle_leaves_the_distance_alone_to_be_found() -> None:
    points = seen(focal_of(70.0, 1.6), 0.8)
    focal, shift = focal_and_shift(points, torch.ones(points.shape[:3], dtype=torch.bool), 70.0)
    torch.testing.assert_close(shift, torch.tensor([0.8]), atol=1e-3, rtol=0)
    torch.testing.assert_close(focal, torch.tensor([focal_of(70.0, 1.6)]))


def test_points_that_do_not_count_or_are_infinite_change_nothing() -> None:
    points = seen(1.1, 1.0)
    mask = torch.ones(points.shape[:3], dtype=torch.bool)
    mask[:, :20], points[:, :10] = False, 1000.0
    points[:, 30] = torch.inf
    focal, shift = focal_and_shift(points, mask, None)
    torch.testing.assert_close(torch.cat((focal, shift)), torch.tensor([1.1, 1.0]), atol=1e-3, rtol=0)


def test_an_image_without_points_has_a_focal_length_of_one() -> None:
    points = seen(1.1, 1.0)
    focal, shift = focal_and_shift(points, torch.zeros(points.shape[:3], dtype=torch.bool), None)
    assert focal.tolist() == [1.0] and shift.tolist() == [0.0]


def test_points_that_only_a_mirror_would_show_get_a_usual_angle() -> None:
    points = seen(1.1, 1.0)
    points[..., :2] *= -1
    focal, _ = focal_and_shift(points, torch.ones(points.shape[:3], dtype=torch.bool), None)
    assert focal.item() > 0
