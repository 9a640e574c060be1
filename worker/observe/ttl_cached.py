"""TTL cache for a figure of the machine that every request needs.

Reading the control groups and two file systems costs more than everything else that admission does.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Generic, TypeVar

Value = TypeVar("Value")

TTL_SECONDS = 0.2


class TtlCached(Generic[Value]):
    """TTL cache of one function: returns the result of `read` that is at most `TTL_SECONDS` old."""

    def __init__(self, read: Callable[[], Value], clock: Callable[[], float] = time.monotonic) -> None:
        self._read = read
        self._clock = clock
        self._held: tuple[float, Value] | None = None

    def __call__(self) -> Value:
        now = self._clock()
        if self._held is None or now - self._held[0] > TTL_SECONDS:
            self._held = now, self._read()
        return self._held[1]
