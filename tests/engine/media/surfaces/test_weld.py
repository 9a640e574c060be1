"""Merging of vertices."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from darkroom.engine.media.mesh import Mesh
from darkroom.engine.media.surfaces.weld import each_item, welded
from tests.engine.media.surfaces.shapes import cube, soup_of, tensor


def test_triangles_without_shared_vertices_get_them_back() -> None:
    joined = welded(soup_of(cube()), 1e-5)
    assert tensor(joined.vertices).shape == (8, 3)
    assert torch.equal(tensor(joined.vertices)[tensor(joined.faces)], tensor(cube().vertices)[tensor(cube().faces)])


def test_position_and_color_are_the_means_of_those_merged() -> None:
    pair = Mesh(
        torch.tensor([[0.0, 0, 0], [0.01, 0, 0], [1, 0, 0]]),
        torch.tensor([[0, 1, 2]]),
        vertex_colors=torch.tensor([[1.0, 0, 0], [0, 0, 0], [0, 1, 0]]),
    )
    joined = welded(pair, 1e-9, absolute=0.1)
    assert tensor(joined.vertices)[:, 0].tolist() == pytest.approx([0.005, 1])
    assert tensor(joined.vertex_colors)[0].tolist() == [0.5, 0, 0]
    assert tensor(joined.faces).tolist() == [[0, 0, 1]]


def test_mesh_of_distinct_vertices_stays_as_it_is() -> None:
    mesh = cube()
    assert welded(mesh, 1e-5) is mesh


def test_batch_of_other_sizes_is_padded_and_keeps_its_texture() -> None:
    texture = torch.rand(2, 4, 4, 3)
    pair = Mesh(
        torch.stack([tensor(soup_of(cube()).vertices), torch.rand(36, 3)]),
        torch.stack([tensor(soup_of(cube()).faces)] * 2),
        uvs=torch.rand(2, 36, 2),
        texture=texture,
    )
    changed = each_item(pair, lambda item: welded(item, 1e-5))
    assert tensor(changed.vertex_counts).tolist() == [8, 36]
    assert tensor(changed.item(0).vertices).shape == (8, 3)
    assert changed.uvs is None
    assert torch.equal(tensor(changed.texture), texture)


def test_mesh_without_vertices_is_left_alone() -> None:
    empty = replace(cube(), vertices=torch.zeros(0, 3), faces=torch.zeros(0, 3, dtype=torch.long))
    assert welded(empty, 1e-5) is empty
