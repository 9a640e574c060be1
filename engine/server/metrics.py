"""Figures of model memory as Prometheus metrics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

METRICS_TYPE = CONTENT_TYPE_PLAIN_0_0_4
PREFIX = "darkroom_memory_"


class MemoryMetrics(Collector):
    """One report: `gauges` and `counts` by name, and how often each of the `relief_steps` was taken.

    A gauge of None is left out.
    """

    def __init__(
        self, gauges: Mapping[str, int | None], counts: Mapping[str, int], relief_steps: Mapping[str, int]
    ) -> None:
        self._gauges = gauges
        self._counts = counts
        self._relief_steps = relief_steps

    def collect(self) -> Iterator[Metric]:
        for name, value in self._gauges.items():
            if value is not None:
                yield GaugeMetricFamily(f"{PREFIX}{name}", _about(name), value=value)
        for name, count in self._counts.items():
            yield CounterMetricFamily(f"{PREFIX}{name}", _about(name), value=count)
        steps = CounterMetricFamily(f"{PREFIX}relief_steps", "Steps taken when memory was short", labels=["step"])
        for step, count in self._relief_steps.items():
            steps.add_metric([step], count)
        yield steps


def _about(name: str) -> str:
    return f"Model memory: {name.replace('_', ' ')}"


def exposition(metrics: MemoryMetrics) -> bytes:
    """Return the metrics in Prometheus' text format."""
    registry = CollectorRegistry()
    registry.register(metrics)
    return generate_latest(registry)
