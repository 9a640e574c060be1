"""StartUpPhases: duration of each part of the start, from the process's creation to ready."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path

STAT = Path("/proc/self/stat")
UPTIME = Path("/proc/uptime")


class Phase(StrEnum):
    """Phases of the start, in their order.

    `import` is from the process's creation to the front's own first line, `front` until its state is open and it
    listens. `tuning` is part of `benchmark`. `ready` is all of it together.
    """

    IMPORT = "import"
    FRONT = "front"
    ENGINE = "engine"
    MODELS = "models"
    BENCHMARK = "benchmark"
    TUNING = "tuning"
    WARM_UP = "warm_up"
    READY = "ready"


class StartUpPhases:
    """Durations of the phases; phases that did not occur are absent. Created with the front, final once ready."""

    def __init__(self, age_seconds: float | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._born = clock() - (process_age_seconds() if age_seconds is None else age_seconds)
        self._made = clock()
        self._seconds: dict[Phase, float] = {Phase.IMPORT: self._made - self._born}

    @property
    def is_over(self) -> bool:
        return Phase.READY in self._seconds

    def front_is_up(self) -> None:
        self._seconds[Phase.FRONT] = self._clock() - self._made

    @contextmanager
    def phase(self, phase: Phase) -> Iterator[None]:
        """Add the time of the block to the phase: a benchmark may take several tries."""
        began = self._clock()
        try:
            yield
        finally:
            if not self.is_over:
                self._seconds[phase] = self._seconds.get(phase, 0.0) + self._clock() - began

    def add(self, phase: Phase, seconds: float) -> None:
        """Add time that was measured elsewhere, until ready."""
        if not self.is_over:
            self._seconds[phase] = self._seconds.get(phase, 0.0) + seconds

    def ready(self) -> bool:
        """Record readiness. Return True the first time."""
        if self.is_over:
            return False
        self._seconds[Phase.READY] = self._clock() - self._born
        return True

    def as_json(self) -> dict[str, float]:
        """Return seconds by phase."""
        return {phase.value: round(self._seconds[phase], 3) for phase in Phase if phase in self._seconds}


def process_age_seconds() -> float:
    """Return the age of the process in seconds; 0 where the system does not report it."""
    try:
        # The program's name is in brackets and may contain spaces; the start is the 20th field after it.
        started_ticks = int(STAT.read_text().rpartition(")")[2].split()[19])
        return max(0.0, float(UPTIME.read_text().split()[0]) - started_ticks / os.sysconf("SC_CLK_TCK"))
    except (OSError, ValueError, IndexError):
        return 0.0
