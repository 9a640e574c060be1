"""Metrics of this machine's GPUs, read through NVML on each scrape. Without NVML there are no samples."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from darkroom.worker.observe.gpu_sensors import GpuName, GpuSensors, Reading, SensorsMissing, Usage, list_gpus


@dataclass(frozen=True, slots=True)
class GpuState:
    gpu: GpuName
    reading: Reading
    usage: Usage


class GpuMetrics(Collector):
    """Gauges of the GPUs as of the last `read`. The label `gpu` is NVML's index."""

    def __init__(self) -> None:
        self._sensors: list[tuple[GpuName, GpuSensors]] | None = None
        self._states: list[GpuState] = []

    async def read(self) -> None:
        """Read the sensors, on another thread. Where NVML is missing, it is not tried again."""
        self._states = await asyncio.to_thread(self._read)

    def _read(self) -> list[GpuState]:
        if self._sensors is None:
            self._sensors = []
            try:
                self._sensors = [(gpu, GpuSensors(gpu.uuid, gpu.name)) for gpu in list_gpus()]
            except SensorsMissing:
                return []
        return [GpuState(gpu, sensors.read(), sensors.usage()) for gpu, sensors in self._sensors]

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        info = GaugeMetricFamily("darkroom_gpu_info", "1; name and UUID of the GPU", labels=["gpu", "name", "uuid"])
        for state in self._states:
            info.add_metric([str(state.gpu.index), state.gpu.name, state.gpu.uuid], 1)
        yield info
        yield self._gauge(
            "utilization_ratio",
            "Share of time in which a kernel ran",
            [s.usage.utilization_ratio for s in self._states],
        )
        yield self._gauge(
            "memory_used_bytes", "VRAM in use, by all processes", [s.usage.memory_used_bytes for s in self._states]
        )
        yield self._gauge("memory_total_bytes", "VRAM", [s.usage.memory_total_bytes for s in self._states])
        yield self._gauge("temperature_celsius", "Temperature", [s.reading.temperature_c for s in self._states])
        yield self._gauge("power_watts", "Power draw", [s.reading.power_w for s in self._states])
        yield self._gauge("power_limit_watts", "Enforced power limit", [s.reading.power_limit_w for s in self._states])
        yield self._gauge(
            "sm_clock_hertz", "Clock of the multiprocessors", [_hertz(s.reading.sm_clock_mhz) for s in self._states]
        )
        yield self._gauge(
            "throttled", "1 while a reason limits the clocks", [bool(s.reading.throttle_reasons) for s in self._states]
        )

    def _gauge(self, name: str, about: str, values: list[float | None] | list[int | None] | list[bool]) -> Metric:
        family = GaugeMetricFamily(f"darkroom_gpu_{name}", about, labels=["gpu"])
        for state, value in zip(self._states, values, strict=True):
            if value is not None:
                family.add_metric([str(state.gpu.index)], float(value))
        return family


def _hertz(mhz: int | None) -> int | None:
    return None if mhz is None else mhz * 1_000_000
