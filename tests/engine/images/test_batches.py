"""Positions in batches: negative ones count from the end, and others than there are become the nearest."""

from __future__ import annotations

import pytest

from darkroom.engine.images.batches import position_in_batch


@pytest.mark.parametrize(("index", "position"), [(0, 0), (2, 2), (5, 2), (-1, 2), (-3, 0), (-9, 0)])
def test_the_nearest_position_is_found(index: int, position: int) -> None:
    assert position_in_batch(index, 3) == position
