"""Widths of batches: how many rows an evaluation of a network has, so that it is fast and always draws the same bits.

The bits of a row depend on how many rows are computed with it: libraries choose other kernels for other sizes. So the
widths are measured, and those are used that give a row the same bits at every place, padded where rows are missing.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

MAX_ALONE_COST = 2.5  # how many times as long an evaluation without company may take, padded
MIN_GAIN = 1.1  # rows a second in company against those without
ABOUT = 1.1  # times that are no further apart are taken for equal


@dataclass(frozen=True, slots=True)
class WidthFigure:
    """Measurement of one width.

    Widths with the same `bits` gave every row the same bits; None where those depend on the row's place in the batch.
    `error` is the relative L2 distance from an evaluation without company or padding.
    """

    width: int
    seconds: float
    bits: int | None
    error: float = 0.0


@dataclass(frozen=True, slots=True)
class Widths:
    """Widths in use for one kind of evaluation, ascending; none where such evaluations are made by themselves.

    `error` is the largest of their figures. They hold with the layers of these names computed `chunk_rows` at a time.
    """

    widths: tuple[int, ...] = ()
    reason: str = ""
    error: float = 0.0
    layers: tuple[str, ...] = ()
    chunk_rows: int = 0

    @property
    def most(self) -> int:
        return self.widths[-1] if self.widths else 0

    def fitting(self, num_rows: int) -> int:
        """Return the smallest width that has place for the rows. ValueError where none has."""
        for width in self.widths:
            if width >= num_rows:
                return width
        raise ValueError(f"no width has place for {num_rows} rows")

    def without(self, width: int) -> Widths:
        """Return the widths below this one."""
        return replace(self, widths=tuple(item for item in self.widths if item < width))


def candidates(max_rows: int) -> list[int]:
    """Return the widths worth measuring: powers of two and those in between, up to `max_rows`."""
    powers = (2**exponent for exponent in itertools.count())
    below = itertools.takewhile(lambda power: power <= max_rows, powers)
    return sorted({width for power in below for width in (power, power * 3 // 2) if width <= max_rows})


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


def chosen(figures: Sequence[WidthFigure], own_rows: int) -> Widths:
    """Return the widths to use for evaluations of so many rows.

    Of the sets of widths with equal bits that do not make an evaluation without company too slow, it is the one with
    the most rows a second. Widths that are no faster a row than a smaller one are left out.
    """
    if not figures:
        return Widths(reason="no width was measured: one evaluation takes too long, or the network fails")
    plain = min((item.seconds for item in figures if item.width >= own_rows), default=0.0)
    best, best_rate = Widths(reason="no widths give a row the same bits in company"), 0.0
    for bits in {item.bits for item in figures} - {None}:
        group = sorted((item for item in figures if item.bits == bits), key=lambda item: item.width)
        alone = next((item for item in group if item.width >= own_rows), None)
        if alone is None or alone.seconds > MAX_ALONE_COST * plain:
            continue
        used = _up_to_fastest(group)
        top = used[-1]
        rate = top.width / top.seconds
        if rate >= MIN_GAIN * own_rows / plain and rate > best_rate:
            best = Widths(tuple(item.width for item in used), error=max(item.error for item in used))
            best_rate = rate
    if not best.widths:
        best = Widths(reason="rows in company are no faster")
    return best


def _up_to_fastest(group: Sequence[WidthFigure]) -> list[WidthFigure]:
    """Return the widths up to the last that is about as fast a row as the fastest."""
    fastest = min(item.seconds / item.width for item in group)
    last = max(item.width for item in group if item.seconds / item.width <= ABOUT * fastest)
    return [item for item in group if item.width <= last]
