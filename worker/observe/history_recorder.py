"""HistoryRecorder: adds the worker's own metrics to their history, again and again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable

from darkroom.worker.observe.history import INTERVAL_SECONDS, HistoryPage, MetricHistory, MetricSample
from darkroom.worker.observe.scrape import Scrape


class HistoryRecorder:
    """Owner of the history, which ends with the process. `read_samples` returns the metrics as of the last scrape."""

    def __init__(
        self,
        scrape: Scrape,
        read_samples: Callable[[], Iterable[MetricSample]],
        interval_seconds: float = INTERVAL_SECONDS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._scrape = scrape
        self._read_samples = read_samples
        self._interval_seconds = interval_seconds
        self._clock = clock
        self._history = MetricHistory()

    async def run_forever(self) -> None:
        while True:
            await asyncio.sleep(self._interval_seconds)  # first: the start has enough to do
            await self.record()

    async def record(self) -> None:
        """Add the metrics of now."""
        await self._scrape.read()
        self._history.add(self._clock(), self._read_samples())

    def page(self, num_seconds: float, num_points: int) -> HistoryPage:
        """Return the series of the last `num_seconds`, in `num_points` equal intervals."""
        return self._history.page(self._clock(), num_seconds, num_points)
