"""Histogram of durations in the form that Prometheus counts them: cumulative buckets, a sum and a count."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

BOUNDS_SECONDS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


@dataclass(slots=True)
class DurationHistogram:
    """Counts of durations by their bucket; the last one holds those above every bound."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS_SECONDS) + 1))
    sum_seconds: float = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(BOUNDS_SECONDS, seconds)] += 1
        self.sum_seconds += seconds

    def buckets(self) -> list[tuple[str, float]]:
        """Return the cumulative count up to each bound, by the bound as text."""
        bounds = [*(f"{bound:g}" for bound in BOUNDS_SECONDS), "+Inf"]
        total, cumulative = 0, []
        for bound, count in zip(bounds, self.counts, strict=True):
            total += count
            cumulative.append((bound, float(total)))
        return cumulative
