"""Colors of sparse grids of voxels."""

from __future__ import annotations

import numpy as np
import pytest

from darkroom.engine.media.surfaces.voxel_colors import sampled, vertex_colors

CELLS = np.array([[0, 0, 0], [1, 0, 0]])
COLORS = np.array([[0, 0, 0], [1, 0.5, 0]], np.float32)


def test_point_between_the_middles_of_two_voxels_has_their_mean() -> None:
    points = np.array([[-0.25, -0.375, -0.375]], np.float32)  # cells of a quarter: middles at -0.375 and -0.125
    assert sampled(points, CELLS, COLORS, 4) == pytest.approx(np.array([[0.5, 0.25, 0]]))


def test_point_far_from_all_voxels_has_the_nearest_ones_color() -> None:
    assert sampled(np.array([[0.45, 0.4, 0.4]], np.float32), CELLS, COLORS, 4).tolist() == [[1, 0.5, 0]]


def test_vertex_has_the_linear_color_of_the_nearest_corner() -> None:
    found = vertex_colors(np.array([[-0.2, -0.5, -0.5]], np.float32), CELLS, COLORS, 4)
    assert found == pytest.approx(np.array([[1, 0.5**2.2, 0]]))
