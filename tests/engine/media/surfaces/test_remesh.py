"""Meshes built anew on a grid."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from darkroom.engine.cancel import CancelToken
from darkroom.engine.media.mesh import Mesh, merged
from darkroom.engine.media.surfaces.edges import edges_of
from darkroom.engine.media.surfaces.parts import KeptParts, parts_of
from darkroom.engine.media.surfaces.remesh import Remeshing, remeshed
from tests.engine.media.surfaces.shapes import fine_box, in_a_batch, tensor

SMALL = replace(fine_box(10), vertices=tensor(fine_box(10).vertices) * 0.6)
SIGNED = Remeshing(resolution=32, is_signed=True)


def anew(mesh: Mesh, rules: Remeshing) -> Mesh:
    return remeshed(mesh, rules, lambda num_bytes: None, CancelToken())


def parts_and_open_edges(mesh: Mesh) -> tuple[int, int]:
    faces = tensor(mesh.faces).numpy()
    edges = edges_of(faces, len(mesh.vertices))
    return int(parts_of(faces, len(mesh.vertices)).max()) + 1, int((edges.num_faces == 1).sum())


def distance_to_box(mesh: Mesh, half: float = 0.3) -> torch.Tensor:
    """Return how far outside a box, below 0 inside, each vertex is along its farthest axis."""
    return tensor(mesh.vertices).abs().amax(1) - half


def test_signs_give_one_closed_surface_where_the_old_one_was() -> None:
    made = anew(SMALL, SIGNED)
    assert parts_and_open_edges(made) == (1, 0)
    assert distance_to_box(made).abs().max() < 0.02


def test_without_signs_the_surface_is_surrounded_on_both_sides() -> None:
    made = anew(SMALL, Remeshing(resolution=32))
    assert parts_and_open_edges(made) == (2, 0)
    assert distance_to_box(made).min() < -0.02 and distance_to_box(made).max() > 0.02


def test_inner_side_is_dropped_as_inverted_or_enclosed() -> None:
    for parts in (KeptParts(no_inverted=True), KeptParts(no_enclosed=True)):
        made = anew(SMALL, Remeshing(resolution=32, parts=parts))
        assert parts_and_open_edges(made) == (1, 0)
        assert distance_to_box(made).min() > 0


def test_sharp_edges_reach_the_corners_of_a_box() -> None:
    blunt, sharp = anew(SMALL, SIGNED), anew(SMALL, replace(SIGNED, has_sharp_edges=True))
    corner = torch.full((1, 3), 0.3)
    near = [float(torch.cdist(corner, tensor(made.vertices)).min()) for made in (blunt, sharp)]
    assert near[1] < 1e-3 < near[0]


def test_sheets_make_every_edge_one_of_two_triangles() -> None:
    touching = merged(
        [in_a_batch(SMALL), in_a_batch(replace(SMALL, vertices=tensor(SMALL.vertices) * 0.3 + 0.4))]
    ).item(0)
    made = anew(touching, replace(SIGNED, has_sheets=True))
    edges = edges_of(tensor(made.faces).numpy(), len(made.vertices))
    assert set(np.unique(edges.num_faces)) == {2}


def test_small_parts_are_dropped_unless_asked_for() -> None:
    speck = replace(SMALL, vertices=tensor(SMALL.vertices) * 0.1 + 0.42)
    both = merged([in_a_batch(SMALL), in_a_batch(speck)]).item(0)
    assert parts_and_open_edges(anew(both, replace(SIGNED, parts=KeptParts(least_share=0.5))))[0] == 1
    assert parts_and_open_edges(anew(both, SIGNED))[0] == 2


def test_vertices_move_back_to_the_surface_and_take_its_colors() -> None:
    painted = replace(SMALL, vertex_colors=tensor(SMALL.vertices) + 0.5)
    made = anew(painted, Remeshing(resolution=32, share_of_original=1.0))
    assert distance_to_box(made).abs().max() < 1e-5
    assert torch.allclose(tensor(made.vertex_colors), tensor(made.vertices) + 0.5, atol=1e-4)


def test_smoothing_evens_out_steps_and_poles_are_merged() -> None:
    turned = replace(SMALL, vertices=tensor(SMALL.vertices) @ _turn().T)
    rough, smooth = anew(turned, SIGNED), anew(turned, replace(SIGNED, smoothing_rounds=5))
    assert torch.equal(tensor(rough.faces), tensor(smooth.faces))
    assert not torch.allclose(tensor(rough.vertices), tensor(smooth.vertices), atol=1e-4)
    merged_away = anew(turned, replace(SIGNED, without_poles=True))
    assert len(merged_away.vertices) <= len(rough.vertices)


def test_mesh_of_too_many_vertices_is_clustered_first() -> None:
    made = anew(SMALL, replace(SIGNED, most_vertices=100))
    assert parts_and_open_edges(made)[1] == 0
    assert distance_to_box(made).abs().max() < 0.2


@pytest.mark.parametrize("resolution", [33, 50])
def test_grids_of_any_size_are_searched_from_coarse_to_fine(resolution: int) -> None:
    made = anew(SMALL, replace(SIGNED, resolution=resolution))
    assert parts_and_open_edges(made) == (1, 0)


def test_cells_are_checked_against_memory_level_by_level() -> None:
    asked: list[int] = []
    remeshed(SMALL, replace(SIGNED, resolution=128), asked.append, CancelToken())
    assert len(asked) == 3 and asked[-1] > asked[0] / 2


def test_mesh_outside_of_the_cube_becomes_empty() -> None:
    far = replace(SMALL, vertices=tensor(SMALL.vertices) + 5.0)
    made = anew(far, SIGNED)
    assert (len(made.vertices), len(made.faces)) == (0, 0)


def _turn() -> torch.Tensor:
    """Return a rotation about z by 30 degrees."""
    return torch.tensor([[0.8660254, -0.5, 0], [0.5, 0.8660254, 0], [0, 0, 1]])
