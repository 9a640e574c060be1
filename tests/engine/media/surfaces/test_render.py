"""Views of meshes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from darkroom.engine.cancel import CancelToken
from darkroom.engine.media.surfaces.render import (
    clay_colors,
    depth_colors,
    normal_colors,
    placed,
    shown,
    texture_colors,
    vertex_colors,
    view_of,
)
from tests.engine.media.surfaces.shapes import cube, square_grid, tensor

FRONT = {"position": {"x": 0.5, "y": 0.5, "z": 1.0}, "target": {"x": 0.5, "y": 0.5, "z": 0.0}, "fov": 90.0}


def test_camera_at_half_a_side_shows_a_square_over_half_the_image() -> None:
    view = view_of(square_grid(2), FRONT)
    mask = shown(square_grid(2), view, 16, 16, CancelToken()).mask
    assert mask[4:12, 4:12].all()
    assert int(mask.sum()) == 64


def test_view_without_a_camera_holds_the_whole_mesh() -> None:
    mask = shown(cube(), view_of(cube(), None), 32, 32, CancelToken()).mask
    assert 200 < int(mask.sum()) < 1024
    assert not mask[0].any()
    assert not mask[:, 0].any()


def test_texture_is_seen_with_its_first_row_where_v_is_0() -> None:
    texture = torch.zeros(2, 1, 3)
    texture[0, :, 0], texture[1, :, 1] = 1.0, 1.0
    mesh = replace(square_grid(2), texture=texture)
    seen = shown(mesh, view_of(mesh, FRONT), 16, 16, CancelToken())
    colors = texture_colors(mesh, seen)
    assert colors[0].tolist() == pytest.approx([0, 1, 0])  # the top of the image is at v = 1
    assert colors[-1].tolist() == pytest.approx([1, 0, 0])


def test_colors_of_vertices_are_linear() -> None:
    mesh = replace(square_grid(1), vertex_colors=torch.full((4, 3), 0.5**2.2))
    seen = shown(mesh, view_of(mesh, FRONT), 16, 16, CancelToken())
    assert torch.allclose(vertex_colors(mesh, seen), torch.tensor(0.5))


def test_face_towards_the_viewer_is_blue_and_light_and_equally_deep() -> None:
    mesh = square_grid(2)
    view = view_of(mesh, {**FRONT, "fov": 0.5, "zoom": 1.0, "position": {"x": 0.5, "y": 0.5, "z": 50.0}})
    seen = shown(mesh, view, 16, 16, CancelToken())
    assert torch.allclose(normal_colors(mesh, seen, view), torch.tensor([0.5, 0.5, 1.0]), atol=1e-3)
    assert torch.allclose(clay_colors(mesh, seen), torch.tensor(0.72), atol=1e-3)


def test_nearest_is_white_and_farthest_black() -> None:
    mesh = square_grid(2)
    grays = depth_colors(shown(mesh, view_of(mesh, FRONT), 16, 16, CancelToken()))
    assert float(grays.max()) == 1.0
    assert float(grays.min()) == 0.0


def test_transform_scales_turns_and_moves() -> None:
    half = 0.5**0.5
    quarter_turn = {"x": 0.0, "y": 0.0, "z": half, "w": half}  # about z: x becomes y
    transform = {
        "scale": {"x": 2.0, "y": 1.0, "z": 1.0},
        "quaternion": quarter_turn,
        "position": {"x": 0.0, "y": 0.0, "z": 3.0},
    }
    moved = placed(replace(square_grid(1), normals=torch.tensor([[1.0, 0, 0]] * 4)), transform)
    assert torch.allclose(tensor(moved.vertices)[1], torch.tensor([0.0, 2.0, 3.0]), atol=1e-6)
    assert torch.allclose(tensor(moved.normals)[1], torch.tensor([0.0, 1.0, 0.0]), atol=1e-6)
