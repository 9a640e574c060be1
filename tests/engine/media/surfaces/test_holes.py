"""Closing of holes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from darkroom.engine.media.mesh import Mesh
from darkroom.engine.media.surfaces.holes import HoleLimits, filled
from tests.engine.media.surfaces.shapes import cube, soup_of, square_grid, tensor


def without(mesh: Mesh, *faces: int) -> Mesh:
    kept = [index for index in range(len(tensor(mesh.faces))) if index not in faces]
    return replace(mesh, faces=tensor(mesh.faces)[kept])


def volume(mesh: Mesh) -> float:
    a, b, c = tensor(mesh.vertices)[tensor(mesh.faces)].unbind(1)
    return float((a * torch.linalg.cross(b, c)).sum() / 6)


@pytest.mark.parametrize("make", [lambda mesh: mesh, soup_of], ids=["shared vertices", "none shared"])
def test_open_cube_is_closed_with_faces_that_look_outwards(make: object) -> None:
    opened = make(without(cube(), 0, 6))  # type: ignore[operator]
    closed = filled(opened, HoleLimits(10.0, 16), 1e-5)
    assert len(tensor(closed.faces)) == 12
    assert volume(closed) == pytest.approx(1.0)


def test_longer_loop_gets_a_vertex_in_its_middle_with_the_mean_color() -> None:
    grid = replace(square_grid(5), vertex_colors=torch.ones(36, 3) * 0.25)
    middle = [
        index
        for row in (1, 2, 3)
        for column in (1, 2, 3)
        for index in (2 * (5 * row + column), 2 * (5 * row + column) + 1)
    ]
    closed = filled(without(grid, *middle), HoleLimits(2.5, 12), 1e-5)
    assert tensor(closed.vertices)[-1].tolist() == pytest.approx([0.5, 0.5, 0.0])
    assert tensor(closed.vertex_colors)[-1].tolist() == [0.25] * 3
    assert len(tensor(closed.faces)) == 50 - 18 + 12


@pytest.mark.parametrize("limits", [HoleLimits(0.1, 16), HoleLimits(10.0, 3)], ids=["too long", "too many vertices"])
def test_hole_beyond_a_limit_stays(limits: HoleLimits) -> None:
    opened = without(cube(), 0, 6)
    assert len(tensor(filled(opened, limits, 1e-5).faces)) == 10


def test_closed_mesh_stays_as_it_is() -> None:
    mesh = cube()
    assert filled(mesh, HoleLimits(10.0, 16), 0.0) is mesh
