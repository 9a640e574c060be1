"""Surfaces of grids."""

from __future__ import annotations

import math

import pytest
import torch

from darkroom.engine.media.surfaces.iso_surface import iso_surface


def test_ball_has_a_closed_surface_that_faces_outwards() -> None:
    lines = torch.arange(24.0)
    distance = (torch.stack(torch.meshgrid(lines, lines, lines, indexing="ij")) - 11.5).square().sum(0).sqrt()
    vertices, faces = iso_surface(8.0 - distance, 0.0)
    a, b, c = vertices[faces].unbind(1)
    assert float((a * torch.linalg.cross(b, c)).sum() / 6) == pytest.approx(4 / 3 * math.pi * 8**3, rel=0.02)
    assert (vertices - 11.5).norm(dim=1) == pytest.approx(8.0, abs=0.2)
    edges = torch.cat([faces[:, [0, 1]], faces[:, [1, 2]], faces[:, [2, 0]]])
    backwards = edges.flip(1)  # each edge has a neighbour in the other direction
    assert torch.equal(torch.unique(edges, dim=0), torch.unique(backwards, dim=0))


def test_grid_that_never_crosses_the_level_has_no_surface() -> None:
    vertices, faces = iso_surface(torch.ones(4, 4, 4), 0.5)
    assert len(vertices) == len(faces) == 0
