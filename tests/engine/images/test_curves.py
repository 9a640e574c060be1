"""Curves through points that a page draws."""

from __future__ import annotations

import numpy as np
import pytest

from darkroom.engine.images.curves import STRAIGHT, Curve, LinearCurve


def test_a_straight_curve_is_straight() -> None:
    assert np.allclose(Curve.from_raw(STRAIGHT).to_lut(5), [0.0, 0.25, 0.5, 0.75, 1.0])


def test_a_monotone_curve_passes_its_points_and_never_turns_between_them() -> None:
    points = [[1.0, 1.0], [0.0, 0.0], [0.1, 0.8], [0.5, 0.85]]
    curve = Curve.from_raw(points)
    assert [curve.interp(x) for x, _ in points] == pytest.approx([y for _, y in points])
    assert np.all(np.diff(curve.to_lut(500)) >= 0)


def test_a_curve_is_level_beyond_its_ends_and_at_its_turns() -> None:
    curve = Curve.from_raw({"points": [[0.2, 0.3], [0.5, 0.9], [0.8, 0.1]]})
    assert curve.interp(0.0) == 0.3 and curve.interp(1.0) == 0.1
    assert max(curve.to_lut(200)) <= 0.9 + 1e-9


def test_a_linear_curve_goes_straight_from_point_to_point() -> None:
    curve = Curve.from_raw({"points": [[0, 0], [0.5, 1], [1, 0]], "interpolation": "linear"})
    assert isinstance(curve, LinearCurve) and curve.interp(0.25) == 0.5


@pytest.mark.parametrize(("points", "value"), [([], 0.0), ([[0.5, 0.7]], 0.7), ([[0.5, 0.2], [0.5, 0.8]], 0.2)])
def test_few_points_are_a_level(points: list[list[float]], value: float) -> None:
    assert Curve.from_raw(points).interp(0.1) == value


@pytest.mark.parametrize("found", [None, 5, "[[0, 0]]", [[0]], [[0, "a"]], [[0, float("nan")]], [[0, 0]] * 2000])
def test_what_is_no_curve_is_refused(found: object) -> None:
    with pytest.raises(ValueError, match="curve: "):
        Curve.from_raw(found)
