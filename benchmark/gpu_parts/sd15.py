"""SD1.5 at 512x512, guided: the work that a launch-bound engine loses most at."""

from __future__ import annotations

from benchmark.gpu_parts.bench import Bench
from benchmark.gpu_parts.unet_speed import measure_unet


def measure(bench: Bench) -> None:
    measure_unet(bench, "sd15_512", (1, 4))
