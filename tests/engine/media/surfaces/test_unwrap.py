"""Layouts of meshes on a texture."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from darkroom.engine.cancel import CancelToken
from darkroom.engine.media.mesh import Mesh
from darkroom.engine.media.surfaces import unwrap
from tests.engine.media.surfaces.shapes import cube, fine_box, soup_of, tensor


def laid_out(mesh: Mesh, side: int = 256, *, weld: float = 0.0, is_thorough: bool = False) -> Mesh:
    return unwrap.unwrapped(mesh, side, 1, weld, CancelToken(), is_thorough=is_thorough)


def areas(points: torch.Tensor, faces: torch.Tensor) -> torch.Tensor:
    a, b, c = points[faces].unbind(1)
    (u, v), (s, t) = (b - a).T, (c - a).T
    found: torch.Tensor = (u * t - v * s).abs() / 2
    return found


@pytest.mark.parametrize("is_thorough", [False, True])
def test_each_triangle_keeps_its_shape_and_has_its_share_of_the_texture(is_thorough: bool) -> None:
    box = fine_box(4)
    made = laid_out(box, is_thorough=is_thorough)
    assert torch.equal(tensor(made.vertices)[tensor(made.faces)], tensor(box.vertices)[tensor(box.faces)])
    uvs = tensor(made.uvs)
    assert uvs.min() >= 0 and uvs.max() <= 1
    shares = areas(uvs, tensor(made.faces))
    assert shares.min() > 0.9 * shares.max()
    assert shares.sum() > 0.3


def test_colors_and_texture_stay_and_normals_go() -> None:
    box = replace(cube(), vertex_colors=tensor(cube().vertices) + 0.5, normals=tensor(cube().vertices))
    box.texture = torch.rand(4, 4, 3)
    made = laid_out(box)
    assert torch.equal(tensor(made.vertex_colors), tensor(made.vertices) + 0.5)
    assert made.texture is box.texture and made.normals is None


def test_triangles_without_shared_vertices_become_charts_of_several() -> None:
    soup = soup_of(fine_box(4))
    assert len(laid_out(soup).vertices) < len(soup.vertices) / 2
    assert len(laid_out(soup, weld=1e-3).vertices) < len(soup.vertices) / 2


def test_mesh_of_too_many_triangles_is_refused_with_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unwrap, "MAX_FACES", 10)
    with pytest.raises(ValueError, match="got 12, expected at most 10 .DecimateMesh"):
        laid_out(cube())


def test_mesh_without_triangles_has_an_empty_layout() -> None:
    made = laid_out(Mesh(torch.zeros(0, 3), torch.zeros(0, 3, dtype=torch.long)))
    assert tensor(made.uvs).shape == (0, 2)
