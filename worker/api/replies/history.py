"""Reply of the history of metrics."""

from __future__ import annotations

from pydantic import Field

from darkroom.worker.api.replies.reply import Reply


class HistorySeries(Reply):
    """One series of a metric: a number for each interval, null where there is no sample."""

    name: str
    labels: dict[str, str]
    is_counter: bool = Field(description="Values are increases within the interval")
    values: list[float | None]


class MetricsHistory(Reply):
    """Series of equal intervals, the last of which ends at `ends_at_ms` (UTC epoch)."""

    ends_at_ms: int
    interval_seconds: float
    series: list[HistorySeries]
