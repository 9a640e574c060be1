"""Normals and tangents of vertices."""

from __future__ import annotations

import numpy as np
import pytest

from darkroom.engine.media.surfaces.normals import creased, smooth_normals, tangents
from tests.engine.media.surfaces.shapes import cube, soup_of, square_grid, tensor


def test_smooth_normals_of_a_cube_point_from_its_middle_also_without_shared_vertices() -> None:
    for mesh in (cube(), soup_of(cube())):
        normals = smooth_normals(tensor(mesh.vertices).numpy(), tensor(mesh.faces).numpy())
        assert ((normals * tensor(mesh.vertices).numpy()).sum(1) > 0.7).all()
        assert np.linalg.norm(normals, axis=1) == pytest.approx(1.0)


def test_sharp_edges_split_vertices_and_keep_flat_faces() -> None:
    mesh = cube()
    source, faces, normals = creased(tensor(mesh.vertices).numpy(), tensor(mesh.faces).numpy(), 30.0)
    assert len(source) == 24
    assert np.array_equal(source[faces], tensor(mesh.faces).numpy())
    assert np.abs(normals).max(1) == pytest.approx(1.0)  # each along an axis


def test_wide_angle_splits_nothing() -> None:
    mesh = cube()
    source, _, _ = creased(tensor(mesh.vertices).numpy(), tensor(mesh.faces).numpy(), 91.0)
    assert len(source) == 8


def test_tangents_follow_u_and_name_the_side_of_v() -> None:
    mesh = square_grid(2)
    up = np.tile(np.array([0, 0, 1], np.float32), (9, 1))
    vertices, faces, uvs = tensor(mesh.vertices).numpy(), tensor(mesh.faces).numpy(), tensor(mesh.uvs).numpy()
    assert tangents(vertices, faces, uvs, up) == pytest.approx(np.tile([1, 0, 0, 1], (9, 1)))
    mirrored = uvs * np.array([-1, 1], np.float32)
    assert tangents(vertices, faces, mirrored, up) == pytest.approx(np.tile([-1, 0, 0, -1], (9, 1)))
