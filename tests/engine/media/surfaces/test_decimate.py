"""Meshes of fewer triangles."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from darkroom.engine.cancel import CancelToken
from darkroom.engine.errors import Interrupted
from darkroom.engine.media.mesh import Mesh
from darkroom.engine.media.surfaces.decimate import decimated
from darkroom.engine.media.surfaces.edges import edges_of
from darkroom.engine.media.surfaces.quadrics import Placement
from tests.engine.media.surfaces.shapes import cube, fine_box, soup_of, square_grid, tensor

MIDDLE, BEST = Placement(), Placement(at_best_point=True)
FREE = Placement(at_best_point=True, on_edge=False)


def volume(mesh: Mesh) -> float:
    a, b, c = tensor(mesh.vertices)[tensor(mesh.faces)].unbind(1)
    return float((a * torch.linalg.cross(b, c)).sum() / 6)


def num_open_edges(mesh: Mesh) -> int:
    edges = edges_of(tensor(mesh.faces).numpy(), len(mesh.vertices))
    return int((edges.num_faces != 2).sum())


@pytest.mark.parametrize("placement", [MIDDLE, BEST, FREE])
def test_closed_mesh_of_fewer_triangles_stays_closed_and_keeps_its_volume(placement: Placement) -> None:
    box = fine_box(12)
    fewer = decimated(box, 300, placement, CancelToken())
    assert 250 <= len(fewer.faces) <= 300
    assert num_open_edges(fewer) == 0
    assert volume(fewer) == pytest.approx(volume(box), rel=0.02)


def test_best_points_bring_a_box_back_to_its_corners() -> None:
    fewer = decimated(fine_box(8), 12, FREE, CancelToken())
    assert len(fewer.faces) == 12
    corners = tensor(cube().vertices)
    assert torch.cdist(corners, tensor(fewer.vertices)).amin(1).max() < 0.01


def test_weights_of_edges_and_lines_change_the_result() -> None:
    box = fine_box(6)
    plain = tensor(decimated(box, 60, BEST, CancelToken()).vertices)
    for placement in (replace(BEST, line_weight=5.0), replace(BEST, feature_weight=100.0)):
        other = tensor(decimated(box, 60, placement, CancelToken()).vertices)
        assert other.shape != plain.shape or not torch.equal(other, plain)


def test_rim_of_an_open_mesh_stays_where_it_is() -> None:
    fewer = decimated(square_grid(16), 60, MIDDLE, CancelToken())
    low, high = tensor(fewer.vertices).amin(0), tensor(fewer.vertices).amax(0)
    assert low.tolist() == pytest.approx([0, 0, 0], abs=0.02)
    assert high.tolist() == pytest.approx([1, 1, 0], abs=0.02)


def test_triangles_without_shared_vertices_are_welded_and_colors_averaged() -> None:
    box = fine_box(8)
    painted = replace(box, vertex_colors=(tensor(box.vertices) + 0.5))
    soup = soup_of(painted)
    soup = replace(soup, vertex_colors=tensor(soup.vertices) + 0.5)
    fewer = decimated(soup, 100, MIDDLE, CancelToken())
    assert num_open_edges(fewer) == 0
    assert torch.allclose(tensor(fewer.vertex_colors), tensor(fewer.vertices) + 0.5, atol=0.15)


def test_mesh_of_few_triangles_is_left_alone() -> None:
    assert decimated(cube(), 12, MIDDLE, CancelToken()) is not None
    assert torch.equal(tensor(decimated(cube(), 12, MIDDLE, CancelToken()).vertices), tensor(cube().vertices))


def test_mesh_whose_edges_all_meet_ends_without_reaching_the_number() -> None:
    count = 3000
    angles = torch.arange(count) * (2 * torch.pi / count)
    rim = torch.stack([angles.cos(), angles.sin(), torch.zeros(count)], 1)
    around = torch.arange(count)
    faces = torch.stack([torch.full((count,), count), around, (around + 1) % count], 1)
    fan = Mesh(torch.cat([rim, torch.zeros(1, 3)]), faces)
    assert len(decimated(fan, 4, MIDDLE, CancelToken()).faces) < count


def test_cancelled_run_ends() -> None:
    token = CancelToken()
    token.cancel()
    with pytest.raises(Interrupted):
        decimated(fine_box(4), 10, MIDDLE, token)
