"""MetricHistory: samples of chosen metrics over the last day, in a ring of fixed size. Pure: others read and time them.

Gauges are kept as they were, counters as their increase since the sample before. Numbers are float32: plots need no
more.
"""

from __future__ import annotations

import math
import operator
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

DAY_SECONDS: Final = 24 * 3600
INTERVAL_SECONDS: Final = 20
CAPACITY: Final = DAY_SECONDS // INTERVAL_SECONDS
MAX_SERIES: Final = 96
"""At 17 kB each."""
MAX_COUNTERS: Final = 1000

COUNTERS: Final = frozenset(
    {
        *("darkroom_jobs_ended_total", "darkroom_job_failures_total", "darkroom_requests_refused_total"),
        *("darkroom_job_wait_seconds_sum", "darkroom_job_wait_seconds_count"),
        *("darkroom_job_run_seconds_sum", "darkroom_job_run_seconds_count"),
    }
)
GAUGES: Final = frozenset(
    {
        *("darkroom_queue_jobs", "darkroom_queue_oldest_age_seconds", "darkroom_front_memory_bytes"),
        *("darkroom_engine_memory_bytes", "darkroom_memory_available_bytes", "darkroom_memory_total_bytes"),
        *("darkroom_memory_device_free_bytes", "darkroom_memory_device_total_bytes"),
        *("darkroom_memory_device_models_bytes", "darkroom_memory_models_ram_bytes"),
        *("darkroom_gpu_memory_used_bytes", "darkroom_gpu_memory_total_bytes", "darkroom_gpu_utilization_ratio"),
    }
)
LOWEST: Final = frozenset({"darkroom_memory_available_bytes", "darkroom_memory_device_free_bytes"})
"""Gauges of which the lowest value of an interval says most."""

METRICS: Final = COUNTERS | GAUGES
"""Names of the samples that are kept."""


@dataclass(frozen=True, slots=True)
class MetricSample:
    """A number of a metric, with its labels by name."""

    name: str
    value: float
    labels: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class HistorySeries:
    """One series over equal intervals; None where there is no sample.

    A gauge's value is the highest of its interval, of free memory the lowest; a counter's is its increase within it.
    """

    name: str
    labels: Mapping[str, str]
    is_counter: bool
    values: Sequence[float | None]


@dataclass(frozen=True, slots=True)
class HistoryPage:
    """Series over equal intervals of `interval_seconds`; the last of them ends at `ends_at`, in epoch seconds."""

    ends_at: float
    interval_seconds: float
    series: Sequence[HistorySeries] = field(default_factory=tuple)


_Key = tuple[str, tuple[tuple[str, str], ...]]


class MetricHistory:
    """Ring of the last `capacity` samples of each series, at most `MAX_SERIES` of them.

    A counter gets a series with its first increase, so that those of errors that never occur take no memory.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._times = array("d", [math.nan]) * capacity
        self._values: dict[_Key, array[float]] = {}
        self._counted: dict[_Key, float] = {}
        self._num_added = 0

    def add(self, at: float, samples: Iterable[MetricSample]) -> None:
        """Add the samples of one moment, in epoch seconds. Samples of other metrics are left out."""
        slot = self._num_added % self._capacity
        self._num_added += 1
        self._times[slot] = at
        for values in self._values.values():
            values[slot] = math.nan
        for sample in samples:
            if sample.name not in METRICS or not math.isfinite(sample.value):
                continue
            key = (sample.name, sample.labels)
            value = self._increase(key, sample.value) if sample.name in COUNTERS else sample.value
            if (kept := self._series(key, value)) is not None:
                kept[slot] = value

    def page(self, now: float, num_seconds: float, num_points: int) -> HistoryPage:
        """Return all series over the last `num_seconds`, in `num_points` equal intervals.

        May be called from any thread: it takes some milliseconds a series.
        """
        held = list(self._values.items())
        interval = num_seconds / num_points
        begin = now - num_seconds
        slots = [
            (slot, min(num_points, math.ceil((at - begin) / interval)) - 1)
            for slot, at in enumerate(self._times)
            if begin < at <= now
        ]
        series = [
            HistorySeries(name, dict(labels), name in COUNTERS, _merged(name, values, slots, num_points))
            for (name, labels), values in sorted(held, key=operator.itemgetter(0))
        ]
        return HistoryPage(now, interval, series)

    def _increase(self, key: _Key, count: float) -> float:
        """Return the increase of a counter since its last sample, 0 where too many counters are known."""
        before = self._counted.get(key, 0.0)
        if key not in self._counted and len(self._counted) >= MAX_COUNTERS:
            return 0.0
        self._counted[key] = count
        return count - before

    def _series(self, key: _Key, value: float) -> array[float] | None:
        """Return the series of a key, a new one where there is room and something to keep."""
        kept = self._values.get(key)
        if kept is None and len(self._values) < MAX_SERIES and (value or key[0] in GAUGES):
            kept = self._values[key] = array("f", [math.nan]) * self._capacity
        return kept


def _merged(
    name: str, values: Sequence[float], slots: Iterable[tuple[int, int]], num_points: int
) -> list[float | None]:
    """Return one value for each interval; `slots` are positions in `values` with their intervals."""
    merge = operator.add if name in COUNTERS else min if name in LOWEST else max
    merged: list[float | None] = [None] * num_points
    for slot, point in slots:
        value, before = values[slot], merged[point]
        if not math.isnan(value):
            merged[point] = value if before is None else merge(before, value)
    return merged
