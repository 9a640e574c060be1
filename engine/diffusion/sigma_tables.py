"""Schedules that were found by optimisation, and the interpolation between their levels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

# Sabour et al. 2024 (Align Your Steps, arXiv 2404.14507): the ten-step schedules of their project page.
ALIGN_YOUR_STEPS = {
    "SD1": (
        14.6146412293, 6.4745760956, 3.8636745985, 2.6946151520, 1.8841921177, 1.3943805092, 0.9642583904, 0.6523686016,
        0.3977456272, 0.1515232662, 0.0291671582,
    ),
    "SDXL": (
        14.6146412293, 6.3184485287, 3.7681790315, 2.1811480769, 1.3405244945, 0.8620721141, 0.5550693289, 0.3798540708,
        0.2332364134, 0.1114188177, 0.0291671582,
    ),
    "SVD": (700.00, 54.5, 15.886, 7.977, 4.248, 1.789, 0.981, 0.403, 0.173, 0.034, 0.002),
}  # fmt: skip


def align_your_steps(model_type: str, steps: int) -> list[float]:
    """Return `steps + 1` falling levels, for other than ten steps interpolated log-linearly as in the paper."""
    levels = ALIGN_YOUR_STEPS[model_type]
    return list(levels) if steps + 1 == len(levels) else log_linear(levels, steps + 1)


def log_linear(levels: Sequence[float], count: int) -> list[float]:
    """Return that many levels from the first to the last, interpolated log-linearly."""
    places = np.linspace(0, 1, len(levels))
    rising = np.interp(np.linspace(0, 1, count), places, np.log(levels[::-1]))
    return [float(level) for level in np.exp(rising)[::-1]]
