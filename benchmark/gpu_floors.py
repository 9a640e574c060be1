"""Operations of the measured work, by which its shortest possible time follows from a card's rate. Pure.

Counted by torch's `FlopCounterMode` on networks without memory; a test counts them anew. A step is one evaluation of
all its rows: two for a guided image.
"""

from __future__ import annotations

from collections.abc import Mapping

PUBLISHED_TFLOPS = 790.0  # of bfloat16 on an H100, 8192x8192x8192, random data: measured, not the data sheet's

TFLOP: Mapping[str, float] = {
    "sd15_512": 1.607,  # a guided step
    "sd15_512_batch_4": 6.43,
    "sdxl_1024": 13.52,
    "sd15_vae_512": 2.5,
    "sdxl_vae_1024": 10.5,
    "flux_1024": 74.4,
    "wan_480p_33": 146.0,  # 832x480, guided
    "wan22_720p_25": 138.5,  # 1280x704, guided
}


def floor_seconds(work: str, tflops: float) -> float:
    """Return the seconds that the operations take at a rate in TFLOP/s."""
    return TFLOP[work] / tflops
