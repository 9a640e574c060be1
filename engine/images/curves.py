"""Curves of one variable over 0..1, as ComfyUI's page draws them through points, with the members that packs use."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

MONOTONE_CUBIC, LINEAR = "monotone_cubic", "linear"
STRAIGHT: Mapping[str, object] = {"points": [[0.0, 0.0], [1.0, 1.0]], "interpolation": MONOTONE_CUBIC}
MAX_POINTS = 1024
STEEPEST = 3.0  # of a tangent, in slopes of its piece: what keeps a piece monotone

Values = NDArray[np.float64]


class Curve(ABC):
    """A curve through points in the order of x. Beyond the first and the last it is level."""

    def __init__(self, points: Sequence[tuple[float, float]]) -> None:
        self.points = sorted(points, key=lambda point: point[0])
        self._x = np.array([x for x, _ in self.points], dtype=np.float64)
        self._y = np.array([y for _, y in self.points], dtype=np.float64)

    def interp(self, x: float) -> float:
        """Return the value at one x."""
        return float(self.interp_array(np.array([x]))[0])

    def interp_array(self, xs: ArrayLike) -> Values:
        """Return the values at each x; 0 of a curve without points."""
        at = np.asarray(xs, dtype=np.float64)
        if len(self._x) < 2:
            return np.full(at.shape, self._y[0] if len(self._y) else 0.0)
        inner = self._between(at)
        return np.where(at <= self._x[0], self._y[0], np.where(at >= self._x[-1], self._y[-1], inner))

    def to_lut(self, size: int = 256) -> Values:
        """Return the values at `size` places, evenly from 0 to 1."""
        return self.interp_array(np.linspace(0.0, 1.0, size))

    @abstractmethod
    def _between(self, at: Values) -> Values:
        """Return the values at each x between the first point and the last."""

    @staticmethod
    def from_raw(data: object) -> Curve:
        """Read a curve of the page: points `[x, y]`, or a mapping of `points` and `interpolation`.

        Raises ValueError for anything else, and for too many points.
        """
        if isinstance(data, Curve):
            return data
        points, kind = data, MONOTONE_CUBIC
        if isinstance(data, Mapping):
            points, kind = data.get("points"), str(data.get("interpolation", MONOTONE_CUBIC))
        read = _points(points)
        return LinearCurve(read) if kind == LINEAR else MonotoneCubicCurve(read)


class LinearCurve(Curve):
    """Straight lines from point to point."""

    def _between(self, at: Values) -> Values:
        values: Values = np.interp(at, self._x, self._y)
        return values


class MonotoneCubicCurve(Curve):
    """Cubic Hermite pieces that rise and fall with their points alone.

    F. N. Fritsch, R. E. Carlson, "Monotone piecewise cubic interpolation", SIAM J. Numer. Anal. 17(2), 1980.
    """

    def __init__(self, points: Sequence[tuple[float, float]]) -> None:
        super().__init__(points)
        self._tangents = _monotone_tangents(self._x, self._y)

    def _between(self, at: Values) -> Values:
        end = np.searchsorted(self._x, at, side="right").clip(1, len(self._x) - 1)
        start = end - 1
        step = self._x[end] - self._x[start]
        t = np.divide(at - self._x[start], step, out=np.zeros_like(at), where=step != 0)
        rise = t * t * (3 - 2 * t)
        leaving, arriving = t * (1 - t) ** 2, t * t * (t - 1)
        tangents = leaving * self._tangents[start] + arriving * self._tangents[end]
        values: Values = (1 - rise) * self._y[start] + rise * self._y[end] + step * tangents
        return values


def _monotone_tangents(x: Values, y: Values) -> Values:
    """Return the slope at each point: the mean of those beside it, 0 at a turn, and no steeper than they allow."""
    if len(x) < 2:
        return np.zeros(len(x))
    steps = np.diff(x)
    slopes = np.divide(np.diff(y), steps, out=np.zeros_like(steps), where=steps != 0)
    middle = np.where(slopes[:-1] * slopes[1:] <= 0, 0.0, (slopes[:-1] + slopes[1:]) / 2)
    tangents = np.concatenate((slopes[:1], middle, slopes[-1:]))
    for index, slope in enumerate(slopes):
        pair = tangents[index : index + 2]
        if slope == 0:
            pair[:] = 0.0
            continue
        size = math.hypot(*(pair / slope))
        if size > STEEPEST:
            pair *= STEEPEST / size
    return tangents


def _points(found: object) -> list[tuple[float, float]]:
    if not isinstance(found, Sequence) or isinstance(found, str) or len(found) > MAX_POINTS:
        raise ValueError(
            f"curve: no list of at most {MAX_POINTS} points; got {type(found).__name__}, expected [[x, y]]"
        )
    points = []
    for point in found:
        try:
            x, y = (float(value) for value in point)
        except (TypeError, ValueError):
            x = y = math.nan
        if not (math.isfinite(x) and math.isfinite(y)):
            raise ValueError(f"curve: a point that is none; got {str(point)[:40]}, expected two numbers [x, y]")
        points.append((x, y))
    return points
