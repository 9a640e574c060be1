"""GPU figures in the metrics, over a management library of our own making."""

from __future__ import annotations

import sys

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from darkroom.worker.observe.gpu_metrics import GpuMetrics
from tests.worker.nvml import Nvml


async def text_of(metrics: GpuMetrics) -> str:
    await metrics.read()
    registry = CollectorRegistry()
    registry.register(metrics)
    return generate_latest(registry).decode()


async def test_every_gpu_has_its_figures_in_base_units(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", Nvml())
    text = await text_of(GpuMetrics())
    for line in (
        'darkroom_gpu_info{gpu="0",name="NVIDIA A10",uuid="GPU-a10"} 1.0',
        'darkroom_gpu_utilization_ratio{gpu="1"} 0.42',
        'darkroom_gpu_memory_used_bytes{gpu="0"} 6.442450944e+09',
        'darkroom_gpu_temperature_celsius{gpu="0"} 70.0',
        'darkroom_gpu_power_watts{gpu="0"} 250.0',
        'darkroom_gpu_sm_clock_hertz{gpu="0"} 1.5e+09',
        'darkroom_gpu_throttled{gpu="0"} 1.0',
    ):
        assert line in text


async def test_without_a_driver_the_metrics_are_declared_and_have_no_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = Nvml()
    nvml.has_driver = False
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    text = await text_of(GpuMetrics())
    assert "# TYPE darkroom_gpu_power_watts gauge" in text
    assert all(line.startswith("#") for line in text.splitlines())
