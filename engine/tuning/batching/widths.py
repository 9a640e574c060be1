"""Widths of batches: how many rows an evaluation of a network has in company, and how many make one batch.

The bits of a row depend on how many rows are computed with it: libraries choose other kernels for other sizes. So the
widths are measured. Those are used that give a row the bits that it has without company, at every place of the batch,
or, where other bits are allowed, those with a small enough error. Rows that are missing in a width are padded. An
evaluation without company is never padded.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

NOT_LIKE = "rows in company are too far from those without"
MIN_GAIN = 1.1  # rows a second in company against those without
ABOUT = 1.1  # times that are no further apart are taken for equal


@dataclass(frozen=True, slots=True)
class WidthFigure:
    """Measurement of one width.

    Widths with the same `bits` gave every row the same bits; None where those depend on the row's place in the batch.
    `error` is the relative L2 distance of the rows from those of evaluations without company or padding; 0.0 is the
    same bits.
    """

    width: int
    seconds: float
    bits: int | None
    error: float = 0.0


@dataclass(frozen=True, slots=True)
class Widths:
    """Widths in use for one kind of evaluation, ascending; none where such evaluations are made by themselves.

    The first is that of an evaluation without company. `error` is the largest of their figures. They hold with the
    layers of these names computed `chunk_rows` at a time. `figures` are of all widths that were measured.
    """

    widths: tuple[int, ...] = ()
    reason: str = ""
    error: float = 0.0
    layers: tuple[str, ...] = ()
    chunk_rows: int = 0
    figures: tuple[WidthFigure, ...] = ()

    @property
    def most(self) -> int:
        return self.widths[-1] if self.widths else 0

    def fitting(self, num_rows: int) -> int:
        """Return the smallest width that has place for the rows. ValueError where none has."""
        for width in self.widths:
            if width >= num_rows:
                return width
        raise ValueError(f"no width has place for {num_rows} rows")

    def num_to_join(self, own_rows: int, num_waiting: int) -> int:
        """Return the number of waiting evaluations of `own_rows` rows to batch, by the least time for each.

        Wide batches are made only while many wait: padding costs what its rows cost.
        """
        seconds = {item.width: item.seconds for item in self.figures}
        places = [number for number in range(1, num_waiting + 1) if number * own_rows <= self.most]
        if not places or any(width not in seconds for width in self.widths):
            return max(places, default=1)
        return min(places, key=lambda number: (seconds[self.fitting(number * own_rows)] / number, -number))

    def without(self, width: int) -> Widths:
        """Return the widths below this one."""
        return replace(self, widths=tuple(item for item in self.widths if item < width))


def candidates(max_rows: int, own_rows: int = 1) -> list[int]:
    """Return the widths worth measuring for evaluations of so many rows, up to `max_rows`.

    They have place for a power of two of them, or for a number in between.
    """
    powers = (2**exponent for exponent in itertools.count())
    below = itertools.takewhile(lambda power: power * own_rows <= max_rows, powers)
    widths = {number * own_rows for power in below for number in (power, power * 3 // 2)}
    return sorted(width for width in widths if width <= max_rows)


def affordable(widths: Sequence[int], own_rows: int, row_seconds: float, budget_seconds: float) -> list[int]:
    """Return the widths, ascending, that can be measured within the budget: the largest ones are dropped first.

    `row_seconds` is the time of one row. None are left where no width has place for more than an evaluation's own rows:
    nothing could be shared.
    """
    left = sorted(widths)
    while left and _rows_to_measure(left) * row_seconds > budget_seconds:
        left.pop()
    return left if len(left) > 1 and left[-1] > own_rows else []


def _rows_to_measure(widths: Sequence[int]) -> int:
    """Return the rows that a measurement computes: all rows at each width, padded, and three evaluations more."""
    most = max(widths)
    return sum((math.ceil(most / width) + 3) * width for width in widths)


def chosen(figures: Sequence[WidthFigure], own_rows: int, tolerance: float = 0.0) -> Widths:
    """Return the widths to use for evaluations of so many rows, those with the most rows a second.

    With a tolerance of 0.0 they give every row the bits that it has without company, with another one an error that is
    no larger. Widths that are no faster a row than a smaller one are left out.
    """
    if not figures:
        return Widths(reason="no width was measured: one evaluation takes too long, or the network fails")
    everything = tuple(figures)
    alone = next((item for item in figures if item.width == own_rows), None)
    if alone is None:
        return Widths(reason="an evaluation without company was not measured", figures=everything)
    group = [item for item in figures if item is alone or (item.width > own_rows and _is_like(item, alone, tolerance))]
    if len(group) == 1 or (not tolerance and alone.bits is None):
        return Widths(
            reason=NOT_LIKE if tolerance else "no widths give a row the same bits in company", figures=everything
        )
    used = _up_to_fastest(sorted(group, key=lambda item: item.width))
    if used[-1].width / used[-1].seconds < MIN_GAIN * own_rows / alone.seconds:
        return Widths(reason="rows in company are no faster", figures=everything)
    error = max(item.error for item in used)
    return Widths(tuple(item.width for item in used), error=error, figures=everything)


def _is_like(figure: WidthFigure, alone: WidthFigure, tolerance: float) -> bool:
    """Return True for a width whose rows are, within the tolerance, those of an evaluation without company."""
    if tolerance:
        return figure.error <= tolerance  # not for NaN
    return figure.bits is not None and figure.bits == alone.bits and figure.error == 0.0


def _up_to_fastest(group: Sequence[WidthFigure]) -> list[WidthFigure]:
    """Return the widths up to the last that is about as fast a row as the fastest."""
    fastest = min(item.seconds / item.width for item in group)
    last = max(item.width for item in group if item.seconds / item.width <= ABOUT * fastest)
    return [item for item in group if item.width <= last]
