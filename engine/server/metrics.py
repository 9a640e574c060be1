"""Figures of one engine as Prometheus metrics: its memory, models, runs and sampling."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

from darkroom.engine.server.run_figures import RunFigures

METRICS_TYPE = CONTENT_TYPE_PLAIN_0_0_4

GAUGES = {
    "device_total_bytes": "Memory of the device",
    "device_free_bytes": "Free memory of the device",
    "device_models_bytes": "Device memory of models",
    "device_buffers_bytes": "Device memory of the buffers that weights are streamed through",
    "device_allocated_bytes": "Device memory of all tensors",
    "device_unaccounted_bytes": "Device memory of tensors that are neither models nor their buffers",
    "device_peak_bytes": "Highest device memory of all tensors since the start",
    "pinned_bytes": "Page-locked RAM",
    "pinned_limit_bytes": "Highest page-locked RAM that the engine takes",
    "ram_available_bytes": "RAM that is left, control groups counted",
    "ram_total_bytes": "RAM of the machine, or the lowest limit of a control group",
    "models": "Models that are loaded or kept to be loaded",
    "models_ram_bytes": "RAM of models",
}
COUNTERS = {
    "loads": "Loads of a model's weights",
    "evictions": "Evictions of a model from the device",
    "evicted_bytes": "Weights evicted from the device",
    "dropped_from_ram": "Models dropped from RAM, to be read again",
    "leaks": "Models that were released and still exist",
    "blocks_brought": "Blocks of weights transferred to the device while a model computed",
    "brought_bytes": "Weights transferred to the device while a model computed",
}
BATCHES = {
    "batched_evaluations": "Evaluations of a network that runs may share",
    "batches": "Batches in which those evaluations were made",
    "batch_rows": "Rows of those batches",
    "batch_padded_rows": "Rows of those batches with the padding to a fixed width",
}


class Durations(Protocol):
    """A histogram of durations."""

    @property
    def sum_seconds(self) -> float: ...

    def buckets(self) -> list[tuple[str, float]]: ...


@dataclass(frozen=True, slots=True)
class MemoryFigures:
    """Figures by the names of the tables above. A gauge of None is not reported: the device does not have it."""

    gauges: Mapping[str, int | None]
    counters: Mapping[str, int]
    relief_steps: Mapping[str, int]
    read_seconds: Durations
    load_seconds: Mapping[str, Durations]
    uses: Mapping[str, int]


class EngineMetrics(Collector):
    """One report of the engine.

    `batches` has the counts of `BATCHES`, `strategy_failures` those of each strategy, `info` the versions and the
    device.
    """

    def __init__(
        self,
        memory: MemoryFigures,
        runs: RunFigures,
        batches: Mapping[str, int],
        strategy_failures: Mapping[str, int],
        info: Mapping[str, str],
    ) -> None:
        self._memory = memory
        self._runs = runs
        self._batches = batches
        self._strategy_failures = strategy_failures
        self._info = info

    def collect(self) -> Iterator[Metric]:
        yield InfoMetricFamily("darkroom_engine", "Versions of the engine, and its device", value=dict(self._info))
        yield from self._of_memory()
        yield from self._of_models()
        yield from self._of_runs()
        for name, about in BATCHES.items():
            yield CounterMetricFamily(f"darkroom_sampling_{name}", about, value=self._batches[name])
        about = "Failures of a strategy, after which the run went on plainly and the strategy was barred"
        yield _counter("darkroom_tuning_strategy_failures", about, "strategy", self._strategy_failures)

    def _of_memory(self) -> Iterator[Metric]:
        for name, about in GAUGES.items():
            value = self._memory.gauges.get(name)
            if value is not None:
                yield GaugeMetricFamily(f"darkroom_memory_{name}", about, value=value)
        for name, about in COUNTERS.items():
            yield CounterMetricFamily(f"darkroom_memory_{name}", about, value=self._memory.counters[name])
        steps = self._memory.relief_steps
        yield _counter("darkroom_memory_relief_steps", "Steps taken when memory was short", "step", steps)

    def _of_models(self) -> Iterator[Metric]:
        reads = HistogramMetricFamily(
            "darkroom_model_read_seconds", "Reads of a model file, until its networks are built"
        )
        reads.add_metric([], self._memory.read_seconds.buckets(), self._memory.read_seconds.sum_seconds)
        yield reads
        yield CounterMetricFamily(
            "darkroom_model_read_failures", "Model files not read", value=self._memory.counters["failed_reads"]
        )
        about = "Loads of a model's weights to its device"
        loads = HistogramMetricFamily("darkroom_model_load_seconds", about, labels=["role"])
        for role, durations in self._memory.load_seconds.items():
            loads.add_metric([role], durations.buckets(), durations.sum_seconds)
        yield loads
        about = "Uses of models, by where their weights were: on the device, in RAM, or in the file only"
        yield _counter("darkroom_model_uses", about, "level", self._memory.uses)

    def _of_runs(self) -> Iterator[Metric]:
        runs = self._runs
        yield _counter("darkroom_runs", "Runs of prompts, by their end", "outcome", runs.runs)
        yield _counter("darkroom_run_failures", "Failed runs, by the error's code", "code", runs.failures)
        yield _counter("darkroom_nodes", "Nodes executed, and nodes whose result was cached", "outcome", runs.nodes)
        yield CounterMetricFamily("darkroom_sampling_steps", "Sampling steps", value=runs.num_steps)
        about = "Sampling steps but the first of each node, whose time includes loading the model"
        yield CounterMetricFamily("darkroom_sampling_timed_steps", about, value=runs.num_timed_steps)
        about = "Time of the timed sampling steps"
        yield CounterMetricFamily("darkroom_sampling_step_seconds", about, value=runs.step_seconds)
        about = "Speed of the last node that sampled; 0 before the first"
        yield GaugeMetricFamily("darkroom_sampling_steps_per_second", about, value=runs.steps_per_second)


def _counter(name: str, about: str, label: str, values: Mapping[str, int]) -> CounterMetricFamily:
    family = CounterMetricFamily(name, about, labels=[label])
    for value, count in values.items():
        family.add_metric([value], count)
    return family


def exposition(metrics: EngineMetrics) -> bytes:
    """Return the metrics in Prometheus' text format."""
    registry = CollectorRegistry()
    registry.register(metrics)
    return generate_latest(registry)
