"""Counters for `/metrics` of model files: where jobs found them, what was fetched and evicted."""

from __future__ import annotations

from prometheus_client import Counter, Gauge
from prometheus_client.registry import Collector

LEVELS = ("disk", "shared", "bucket", "network")
FETCH_OUTCOMES = ("fetched", "failed")


class ModelMetrics:
    """Counters of model files. Created before its users; `collectors` go into the registry."""

    def __init__(self) -> None:
        about = "Model files that jobs named, by the level that had them: `disk`, `shared`, `bucket` or `network`"
        self._lookups = Counter("darkroom_model_file_lookups", about, ["level"], registry=None)
        self._fetches = Counter(
            "darkroom_model_file_fetches", "Model files fetched for jobs", ["outcome"], registry=None
        )
        self._fetched_bytes = Counter("darkroom_model_file_fetched_bytes", "Bytes of these files", registry=None)
        self._evicted = Counter("darkroom_model_files_evicted", "Model files removed from the disk", registry=None)
        self._in_flight = Gauge("darkroom_model_file_downloads", "Model files that are being fetched", registry=None)
        for level in LEVELS:
            self._lookups.labels(level)
        for outcome in FETCH_OUTCOMES:
            self._fetches.labels(outcome)

    @property
    def collectors(self) -> tuple[Collector, ...]:
        return self._lookups, self._fetches, self._fetched_bytes, self._evicted, self._in_flight

    def found(self, level: str) -> None:
        self._lookups.labels(level).inc()

    def fetch_began(self) -> None:
        self._in_flight.inc()

    def fetch_ended(self, size_bytes: int | None) -> None:
        """Count a fetch; `size_bytes` None: it failed."""
        self._in_flight.dec()
        self._fetches.labels("failed" if size_bytes is None else "fetched").inc()
        if size_bytes is not None:
            self._fetched_bytes.inc(size_bytes)

    def evicted(self) -> None:
        self._evicted.inc()
