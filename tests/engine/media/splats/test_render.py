"""Images of splats."""

from __future__ import annotations

import math

import pytest
import torch

from darkroom.engine.cancel import CancelToken
from darkroom.engine.media.cameras import Lens, looking_at
from darkroom.engine.media.splats.camera import around, camera_of, framed
from darkroom.engine.media.splats.footprints import footprints_of
from darkroom.engine.media.splats.render import STYLES, RenderOptions, rendered
from darkroom.engine.media.splats.splat import Splat, harmonics_of

FRONT = looking_at((0, 0, 4), (0, 0, 0), Lens(90))
BLACK = torch.zeros(32, 32, 3)


def spots(*placed: tuple[tuple[float, float, float], tuple[float, float, float]], opacity: float = 1.0) -> Splat:
    """Return Gaussians at positions of the world of splats (y downwards, z forwards), in colors."""
    positions, colors = (torch.tensor(values) for values in zip(*placed, strict=True))
    count = len(placed)
    rotations = torch.tensor([1.0, 0, 0, 0]).expand(count, 4)
    scales = torch.tensor([0.3, 0.3, 0.05]).expand(count, 3)
    return Splat(positions, scales, rotations, torch.full((count, 1), opacity), harmonics_of(colors))


def options(style: str = "color", sharpness: float = 1.0, headlight: float = 0.0) -> RenderOptions:
    return RenderOptions(style, 1.0, sharpness, headlight)


RED_RIGHT = ((1.0, 0.0, 0.0), (1.0, 0.0, 0.0))
GREEN_BELOW = ((0.0, 1.0, 0.0), (0.0, 1.0, 0.0))


def test_gaussians_are_where_the_camera_sees_them() -> None:
    image, mask = rendered(spots(RED_RIGHT, GREEN_BELOW), camera_of(FRONT, 32, 32), BLACK, options(), CancelToken())
    assert image[16, 20].argmax() == 0  # 1 / 4 of 16 px to the right
    assert image[20, 16].argmax() == 1
    assert mask[16, 20] > 0.9
    assert mask[2, 2] < 1e-3


def test_nearer_gaussian_hides_the_farther_one() -> None:
    far = [((0.0, 0.0, 1.0 + 1e-3 * index), (0.0, 0.0, 1.0)) for index in range(1500)]
    near = [((0.0, 0.0, -1.0), (1.0, 0.0, 0.0))] * 1500
    image, _ = rendered(spots(*far, *near), camera_of(FRONT, 32, 32), BLACK, options(), CancelToken())
    assert image[16, 16].tolist() == pytest.approx([1, 0, 0], abs=1e-3)


def test_half_opaque_gaussian_blends_with_the_background_as_light() -> None:
    white = spots(((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)), opacity=0.5)
    image, mask = rendered(white, camera_of(FRONT, 32, 32), BLACK, options(), CancelToken())
    assert float(mask[16, 16]) == pytest.approx(0.5, abs=0.01)
    assert float(image[16, 16, 0]) == pytest.approx(1.055 * 0.5 ** (1 / 2.4) - 0.055, abs=0.01)


def test_weight_along_a_parallel_ray_is_that_of_the_flat_gaussian() -> None:
    camera = camera_of({**FRONT, "cameraType": "orthographic"}, 32, 32)  # 4 px a unit
    seen = footprints_of(spots(RED_RIGHT, opacity=0.9), camera, 1.0, 32, 32)
    _, opacity = seen.weights(torch.tensor([0]), torch.tensor([[0.0, 0.0], [2.0, 0.0]]), camera, 32, 32)
    assert opacity[0].tolist() == pytest.approx([0.9, 0.9 * math.exp(-0.5 * (0.5 / 0.3) ** 2)], abs=5e-3)


def test_styles_show_depth_and_normals() -> None:
    pair = spots(((-1.0, 0.0, -1.0), (0.2, 0.4, 0.6)), ((1.0, 0.0, 1.0), (0.2, 0.4, 0.6)))
    images = {
        style: rendered(pair, camera_of(FRONT, 32, 32), BLACK, options(style), CancelToken())[0] for style in STYLES
    }
    assert images["depth"][16, 10, 0] > images["depth"][16, 19, 0]
    assert images["normal"][16, 10].tolist() == pytest.approx([0.5, 0.5, 1.0], abs=0.02)
    assert torch.equal(images["clay"][..., 0], images["clay"][..., 2])
    assert images["color"][16, 10].tolist() == pytest.approx([0.2, 0.4, 0.6], abs=0.05)


def test_headlight_leaves_what_faces_the_camera() -> None:
    camera = camera_of(FRONT, 32, 32)
    plain, _ = rendered(spots(RED_RIGHT), camera, BLACK, options(), CancelToken())
    lit, _ = rendered(spots(RED_RIGHT), camera, BLACK, options(headlight=1.0), CancelToken())
    assert torch.allclose(plain[16, 20], lit[16, 20], atol=0.02)


def test_nothing_before_the_camera_is_the_background() -> None:
    behind = spots(((0.0, 0.0, -9.0), (1.0, 0.0, 0.0)))
    gray = BLACK + 0.5
    image, mask = rendered(behind, camera_of(FRONT, 32, 32), gray, options(), CancelToken())
    assert torch.equal(image, gray)
    assert mask.max() == 0


def test_default_camera_frames_the_gaussians() -> None:
    positions = torch.tensor([[5.0, 1.0, 2.0], [5.0, 2.0, 3.0], [6.0, 1.0, 2.0]])
    camera = camera_of(framed(positions), 64, 64)
    flat = (positions - camera.eye) @ camera.axes.T
    assert (flat[:, 2] > 0).all()
    assert (flat[:, :2] / flat[:, 2:] * camera.focal_px).abs().max() < 32


def test_half_a_turn_looks_from_the_other_side() -> None:
    there = camera_of(around(FRONT, 180.0), 32, 32)
    assert torch.allclose(there.eye, torch.tensor([0.0, 0.0, 4.0]), atol=1e-5)
    assert torch.allclose(there.axes, torch.diag(torch.tensor([-1.0, 1.0, -1.0])), atol=1e-5)


def test_camera_without_a_rotation_is_upright() -> None:
    without = {name: value for name, value in FRONT.items() if name != "quaternion"}
    assert torch.allclose(camera_of(without, 32, 32).axes, camera_of(FRONT, 32, 32).axes, atol=1e-6)
