"""Parts and nearest points."""

from __future__ import annotations

import numpy as np

from darkroom.engine.media.surfaces.neighbours import connected, nearest_index


def test_parts_are_numbered_by_their_first_items() -> None:
    assert connected(6, np.array([4, 1]), np.array([2, 5])).tolist() == [0, 1, 2, 3, 2, 1]


def test_nearest_point_of_each_query() -> None:
    points = np.array([[0, 0, 0], [1, 0, 0]], np.float32)
    assert nearest_index(points, np.array([[0.6, 2, 0], [0.4, 2, 0]], np.float32)).tolist() == [1, 0]
