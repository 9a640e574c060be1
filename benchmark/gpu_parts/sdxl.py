"""SDXL at 1024x1024, guided."""

from __future__ import annotations

from benchmark.gpu_parts.bench import Bench
from benchmark.gpu_parts.unet_speed import measure_unet


def measure(bench: Bench) -> None:
    measure_unet(bench, "sdxl_1024", (1,))
