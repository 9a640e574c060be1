"""Details of fine meshes on coarse ones."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from darkroom.engine.cancel import CancelToken
from darkroom.engine.media.surfaces.bakes import Occlusion, ambient_occlusion, projected, tangent_normals
from tests.engine.media.surfaces.shapes import square_grid, tensor


def test_same_surface_has_a_flat_normal_map() -> None:
    image = tangent_normals(square_grid(1), square_grid(4), 8, 0.05, CancelToken(), ignore_backfaces=True)
    assert torch.allclose(image, torch.tensor([0.5, 0.5, 1.0]).expand(8, 8, 3))


def test_surface_that_rises_along_u_leans_against_it() -> None:
    flat = tensor(square_grid(4).vertices)
    slope = replace(square_grid(4), vertices=flat + torch.tensor([0.0, 0, 0.1]) * flat[:, :1])
    image = tangent_normals(square_grid(1), slope, 8, 0.2, CancelToken(), ignore_backfaces=True)
    length = (1 + 0.1**2) ** 0.5
    assert image[4, 4].tolist() == pytest.approx([0.5 - 0.05 / length, 0.5, 0.5 + 0.5 / length], abs=1e-5)


def test_open_plane_is_white_and_a_roof_darkens_what_lies_below() -> None:
    torch.manual_seed(0)
    rays = Occlusion(64, 2.0, 0.01, 1.0)
    floor, roof = square_grid(2), square_grid(2, height=0.2)
    assert ambient_occlusion(floor, floor, 8, rays, CancelToken()).min() == 1.0
    both = replace(
        floor,
        vertices=torch.cat([tensor(floor.vertices), tensor(roof.vertices)]),
        faces=torch.cat([tensor(floor.faces), tensor(roof.faces) + 9]),
    )
    shaded = ambient_occlusion(floor, both, 8, rays, CancelToken())
    assert shaded[4, 4, 0] < 0.2
    assert shaded[0, 0, 0] > shaded[4, 4, 0]
    half = ambient_occlusion(floor, both, 8, replace(rays, strength=0.5), CancelToken())
    assert half[4, 4, 0] >= 0.5


def test_points_go_to_the_nearest_of_the_fine_surface() -> None:
    found = projected(torch.tensor([[0.3, 0.4, 0.7], [2.0, 0.5, 0.0]]), square_grid(3), CancelToken())
    assert torch.allclose(found, torch.tensor([[0.3, 0.4, 0.0], [1.0, 0.5, 0.0]]))
