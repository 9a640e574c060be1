"""Configurations read from the shapes of a file's tensors."""

from __future__ import annotations

import pytest

from darkroom.engine.layers.shapes import count_children, expect


def test_children_are_counted_by_the_largest_number() -> None:
    shapes = {"layers.0.weight": (1,), "layers.11.weight": (1,), "layers.norm.weight": (1,), "other.40": (1,)}
    assert count_children(shapes, "layers") == 12
    assert count_children(shapes, "blocks") == 0


@pytest.mark.parametrize("number", ["1000", "999999999", "9" * 5000, "\u00b2", "-1"])
def test_numbers_that_no_network_reaches_are_not_counted(number: str) -> None:
    assert count_children({"layers.1.weight": (1,), f"layers.{number}.weight": (1,)}, "layers") == 2


def test_a_size_that_does_not_fit_is_named() -> None:
    expect("levels", 5, 5)
    with pytest.raises(ValueError, match="levels: got 4, expected 5"):
        expect("levels", 4, 5)
