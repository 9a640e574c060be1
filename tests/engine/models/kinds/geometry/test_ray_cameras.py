"""Cameras from the rays of pixels: a known camera is found again, also among rays that are wrong."""

from __future__ import annotations

import torch

from darkroom.engine.models.kinds.geometry.camera_decoder import inverted, rotation_of
from darkroom.engine.models.kinds.geometry.ray_cameras import cameras_of_rays

ROTATION = rotation_of(torch.nn.functional.normalize(torch.tensor((0.1, 0.2, -0.1, 0.95)), dim=0))
FOCAL, CENTRE, POSITION = (torch.tensor(values) for values in ((1.4, 1.1), (1.05, 0.97), (1.0, 2.0, 3.0)))


def rays(height: int = 20, width: int = 30) -> torch.Tensor:
    columns, rows = (torch.arange(0.5, size) * 2 / size for size in (width, height))
    plane = torch.stack((columns.expand(height, width), rows[:, None].expand(height, width)), dim=-1)
    ahead = torch.cat(((plane - CENTRE) / FOCAL, torch.ones(height, width, 1)), dim=-1)
    return torch.cat((ahead @ ROTATION.T, POSITION.expand(height, width, 3)), dim=-1)


def found_with(given: torch.Tensor, confidence: torch.Tensor) -> None:
    rotation, position, focal, centre = cameras_of_rays(given, confidence)
    torch.testing.assert_close(position, POSITION, atol=0.02, rtol=0)
    torch.testing.assert_close(rotation @ rotation.T, torch.eye(3), atol=1e-4, rtol=0)
    # What a pixel sees is the same, however rotation and intrinsics share it.
    ahead = torch.tensor((0.3 - centre[0], -0.2 - centre[1])) / focal
    seen = rotation @ torch.cat((ahead, torch.ones(1)))
    expected = ROTATION @ torch.cat(((torch.tensor((0.3, -0.2)) - CENTRE) / FOCAL, torch.ones(1)))
    torch.testing.assert_close(seen / seen.norm(), expected / expected.norm(), atol=0.02, rtol=0)


def test_a_known_camera_is_found() -> None:
    found_with(rays(), torch.rand(20, 30, generator=torch.Generator().manual_seed(0)) + 1)


def test_rays_that_are_wrong_do_not_count() -> None:
    given, confidence = rays(), torch.full((20, 30), 2.0)
    generator = torch.Generator().manual_seed(1)
    wrong = torch.rand(20, 30, generator=generator) < 0.2
    given[wrong] = torch.cat((torch.randn(int(wrong.sum()), 3, generator=generator), given[wrong][:, 3:]), dim=-1)
    found_with(given, confidence)


def test_the_same_rays_have_the_same_camera() -> None:
    given, confidence = rays() + 0.01 * torch.randn(20, 30, 6), torch.rand(20, 30)
    for first, second in zip(cameras_of_rays(given, confidence), cameras_of_rays(given, confidence), strict=True):
        assert torch.equal(first, second)


def test_a_pose_undoes_rotation_and_position() -> None:
    pose = inverted(ROTATION, POSITION)
    point = ROTATION @ torch.tensor((0.5, -1.0, 2.0)) + POSITION
    torch.testing.assert_close(pose[:, :3] @ point + pose[:, 3], torch.tensor((0.5, -1.0, 2.0)))
