"""The faster of two ways to compute a layer, by the number of rows: measured once for each shape."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass

import torch

MEASURED_ROWS = (1, 16, 128, 1024, 4096)
ROUNDS = 3  # in which both ways are timed in turns
CALLS = 4  # of one timing, launched one after the other
DRAWN_ROWS = 64  # of different numbers
LEAST_GAIN = 1.05
LONG_SECONDS = 0.01  # of a call, after which no more rows are tried: on a processor they take too long

log = logging.getLogger(__name__)

Work = Callable[[torch.Tensor], torch.Tensor]
"""Rows [M, K] -> [M, N]."""
Seconds = Callable[[Work, torch.Tensor], float]


@dataclass(frozen=True, slots=True)
class RowChoice:
    """For each of `MEASURED_ROWS`: True where the product of stored weights is the faster way."""

    is_faster: tuple[bool, ...]

    def __bool__(self) -> bool:
        return any(self.is_faster)

    def at(self, num_rows: int) -> bool:
        """Return the choice for that many rows: that of the measured number nearest to it by ratio."""
        position = math.log2(max(1, num_rows))
        nearest = min(range(len(MEASURED_ROWS)), key=lambda index: abs(math.log2(MEASURED_ROWS[index]) - position))
        return self.is_faster[nearest]


class ProductTimes:
    """Choices between a product of stored weights and the plain way, by shape. A few milliseconds each, once."""

    def __init__(self, seconds: Seconds | None = None) -> None:
        self._seconds = seconds_of if seconds is None else seconds
        self._choices: dict[Hashable, RowChoice] = {}

    def known(self, key: Hashable) -> RowChoice | None:
        """Return the choice for layers of this `key` where it has been measured."""
        return self._choices.get(key)

    def choice(self, key: Hashable, like: torch.Tensor, product: Work, plain: Work) -> RowChoice:
        """Return the choice for layers of this `key`, which has kind, shape and types, measured at the first of them.

        `like` [0, K] gives type, device and width of the rows. Where a way raises RuntimeError the plain one is chosen.
        """
        found = self._choices.get(key)
        if found is None:
            found = self._choices[key] = self._measured(like, product, plain)
            log.info("product of stored weights measured: layer=%s faster_at_rows=%s", key, found.is_faster)
        return found

    def _measured(self, like: torch.Tensor, product: Work, plain: Work) -> RowChoice:
        """Measure with more and more rows, and take the last result for those that would take too long."""
        if like.is_meta:  # there is nothing to measure
            return RowChoice((True,) * len(MEASURED_ROWS))
        found: list[bool] = []
        for num_rows in MEASURED_ROWS:
            is_faster, seconds = self._is_faster(like, num_rows, product, plain)
            found.append(is_faster)
            if seconds > LONG_SECONDS:
                break
        return RowChoice((*found, *found[-1:] * (len(MEASURED_ROWS) - len(found))))

    def _is_faster(self, like: torch.Tensor, num_rows: int, product: Work, plain: Work) -> tuple[bool, float]:
        """Return True if the product is faster for that number of rows, and the seconds of a plain call."""
        some = torch.randn(min(num_rows, DRAWN_ROWS), like.shape[1], generator=torch.Generator().manual_seed(0)).to(
            like
        )
        rows = some.repeat(-(-num_rows // DRAWN_ROWS), 1)[:num_rows]  # constant numbers would be multiplied faster
        fastest = [math.inf, math.inf]
        try:
            for _ in range(ROUNDS):
                for index, work in enumerate((product, plain)):
                    fastest[index] = min(fastest[index], self._seconds(work, rows))
        except RuntimeError as error:  # also where so many rows need more memory than there is
            log.info("product of stored weights not used: rows=%d reason=%s", num_rows, error)
            return False, 0.0
        return fastest[0] * LEAST_GAIN < fastest[1], fastest[1]


def seconds_of(work: Work, rows: torch.Tensor) -> float:
    """Return the seconds of a call: on a processor of its own time, else until the device has done several."""
    work(rows).flatten()[0].item()  # waits for the device
    clock, num_calls = (time.process_time, 1) if rows.is_cpu else (time.perf_counter, CALLS)
    began = clock()
    for _ in range(num_calls):
        out = work(rows)
    out.flatten()[0].item()
    return (clock() - began) / num_calls
