"""Metrics of the engines and of memory for `/metrics`, read on each scrape."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from worker.engines.watch import EngineReport, EngineState
from worker.observe.memory import MachineMemory

UP = (EngineState.UP, EngineState.DRAINING, EngineState.STOPPING)


class EngineMetrics(Collector):
    def __init__(self, reports: Callable[[], Sequence[EngineReport]], memory: MachineMemory) -> None:
        self._reports = reports
        self._memory = memory

    def describe(self) -> Iterable[Metric]:
        return ()  # no engine has reported yet at registration

    def collect(self) -> Iterable[Metric]:
        up = _gauge("darkroom_engine_up", "1 when the engine takes prompts", "engine")
        prompts = _gauge("darkroom_engine_prompts", "Prompts that the engine has", "engine")
        age = _gauge("darkroom_engine_heartbeat_age_seconds", "Since the last sign of life", "engine")
        quiet = _gauge("darkroom_engine_seconds_without_progress", "Of the running prompt", "engine")
        size = _gauge("darkroom_engine_memory_bytes", "Anonymous and shared memory of the process", "engine")
        restarts = CounterMetricFamily(
            "darkroom_engine_restarts", "Engines replaced, by reason", labels=["engine", "reason"]
        )
        for engine in self._reports():
            up.add_metric([engine.url], 1 if engine.state in UP else 0)
            prompts.add_metric([engine.url], engine.num_prompts)
            for family, value in (
                (age, engine.heartbeat_age_seconds),
                (quiet, engine.quiet_seconds),
                (size, engine.memory_bytes),
            ):
                if value is not None:
                    family.add_metric([engine.url], value)
            for reason, count in engine.restarts.items():
                restarts.add_metric([engine.url, reason.value], count)
        return [up, prompts, age, quiet, size, restarts, *self._memory_left()]

    def _memory_left(self) -> Iterable[Metric]:
        for name, about, value in (
            ("darkroom_front_memory_bytes", "Of this process", self._memory.process_bytes(os.getpid())),
            ("darkroom_memory_available_bytes", "Left of the container or the machine", self._memory.available_bytes()),
        ):
            if value is not None:
                yield GaugeMetricFamily(name, about, value=value)


def _gauge(name: str, about: str, label: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, about, labels=[label])
