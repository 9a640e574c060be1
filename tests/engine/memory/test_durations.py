"""Durations as Prometheus counts them."""

from __future__ import annotations

from darkroom.engine.memory.durations import DurationHistogram


def test_buckets_are_cumulative_and_their_bounds_included() -> None:
    durations = DurationHistogram()
    for seconds in (0.01, 0.02, 1000.0):
        durations.add(seconds)
    buckets = dict(durations.buckets())
    assert (buckets["0.01"], buckets["0.05"], buckets["300"], buckets["+Inf"]) == (1, 2, 2, 3)
    assert durations.sum_seconds == 1000.03
