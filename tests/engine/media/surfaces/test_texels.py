"""Triangles on a texture."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from darkroom.engine.cancel import CancelToken
from darkroom.engine.media.surfaces.texels import grown, normalized_uvs, texels_of
from tests.engine.media.surfaces.shapes import square_grid, tensor


def test_each_texel_of_a_full_layout_has_its_own_position() -> None:
    mesh = square_grid(3)
    texels = texels_of(tensor(mesh.uvs) * 8, tensor(mesh.faces), 8, 8, CancelToken())
    assert texels.covered.all()
    middles = (torch.arange(8) + 0.5) / 8
    found = texels.values(tensor(mesh.faces), tensor(mesh.uvs)).reshape(8, 8, 2)
    assert torch.allclose(found, torch.stack(torch.meshgrid(middles, middles, indexing="xy"), dim=-1), atol=1e-6)


def test_first_of_overlapping_triangles_counts() -> None:
    points = torch.tensor([[0.0, 0], [8, 0], [0, 8]])
    texels = texels_of(points, torch.tensor([[0, 1, 2], [0, 1, 2]]), 8, 8, CancelToken())
    assert set(texels.faces.reshape(-1).tolist()) == {-1, 0}


def test_triangles_that_overlap_too_often_are_refused() -> None:
    points = torch.tensor([[0.0, 0], [64, 0], [0, 64]])
    with pytest.raises(ValueError, match="uvs: triangles overlap too often"):
        texels_of(points, torch.tensor([[0, 1, 2]]).expand(200, 3), 64, 64, CancelToken())


def test_layout_outside_the_texture_is_scaled_to_it_by_its_larger_side() -> None:
    inside = torch.tensor([[0.0, 0.25], [1.0, 0.5]])
    assert normalized_uvs(inside) is inside
    assert normalized_uvs(torch.tensor([[-1.0, 0.0], [3.0, 2.0]])).tolist() == [[0, 0], [1, 0.5]]


def test_texels_outside_take_the_nearest_value() -> None:
    image = np.zeros((8, 9, 1), np.float32)
    image[2, 1], image[6, 7] = 1, 2
    filled = grown(image, image[..., 0] > 0)
    y, x = np.indices((8, 9))
    first, second = (y - 2) ** 2 + (x - 1) ** 2, (y - 6) ** 2 + (x - 7) ** 2
    differs = first != second
    assert np.array_equal(filled[..., 0][differs], np.where(first < second, 1, 2)[differs])


def test_image_without_covered_texels_stays() -> None:
    image = np.ones((4, 4, 3), np.float32)
    assert grown(image, np.zeros((4, 4), bool)) is image
