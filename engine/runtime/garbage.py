"""Schedule of Python's search for cycles of objects, in a process that is the engine's alone.

Left alone it would look again and again while a large graph is being made: every full collection walks all objects
there are, torch's modules and the graph included, so that a node of a graph of 10,000 costs twice one of 1,000. So
what is there once the engine is built is taken out of the collector's sight (it stays for good), collections
during runs become rare, and one is made after a run when the last is some seconds ago. It is not switched off
within a run: a run may take minutes, and cycles that custom nodes make may hold images and models.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

THRESHOLDS = (50_000, 20, 20)  # new objects, then collections of the younger generation, before one is looked through
COLLECT_EVERY_SECONDS = 10.0


class GarbageCollection:
    """The one owner of the process's collector settings, from `take_over` to `give_back`. Used on the GPU thread."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._before: tuple[int, int, int] | None = None
        self._collected_at = now()

    def take_over(self) -> None:
        """Freeze what there is and set the thresholds. Does nothing the second time."""
        if self._before is not None:
            return
        self._before = gc.get_threshold()
        gc.collect()
        gc.freeze()
        gc.set_threshold(*THRESHOLDS)
        self._collected_at = self._now()

    def after_run(self) -> None:
        """Collect when the last time is long enough ago, and only where `take_over` was called."""
        if self._before is not None and self._now() - self._collected_at >= COLLECT_EVERY_SECONDS:
            gc.collect()
            self._collected_at = self._now()

    def give_back(self) -> None:
        """Restore the collector's settings for the rest of the process."""
        if self._before is not None:
            gc.set_threshold(*self._before)
            gc.unfreeze()
            self._before = None
