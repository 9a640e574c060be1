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

# Pei et al. 2025 (Optimal Stepsize for Diffusion Sampling, arXiv 2503.21774): levels of flow networks.
OPTIMAL_STEPS = {
    "FLUX": (0.9968, 0.9886, 0.9819, 0.975, 0.966, 0.9471, 0.9158, 0.8287, 0.5512, 0.2808, 0.001),
    "Wan": (
        1.0, 0.997, 0.995, 0.993, 0.991, 0.989, 0.987, 0.985, 0.98, 0.975, 0.973, 0.968, 0.96, 0.946, 0.927, 0.902,
        0.864, 0.776, 0.539, 0.208, 0.001,
    ),
    "Chroma": (
        0.992, 0.99, 0.988, 0.985, 0.982, 0.978, 0.973, 0.968, 0.961, 0.953, 0.943, 0.931, 0.917, 0.9, 0.881, 0.858,
        0.832, 0.802, 0.769, 0.731, 0.69, 0.646, 0.599, 0.55, 0.501, 0.451, 0.402, 0.355, 0.311, 0.27, 0.232, 0.199,
        0.169, 0.143, 0.12, 0.101, 0.084, 0.07, 0.058, 0.048, 0.001,
    ),
}  # fmt: skip


def align_your_steps(model_type: str, steps: int) -> list[float]:
    """Return `steps + 1` falling levels, for other than ten steps interpolated log-linearly as in the paper."""
    levels = ALIGN_YOUR_STEPS[model_type]
    return list(levels) if steps + 1 == len(levels) else log_linear(levels, steps + 1)


def optimal_steps(model_type: str, steps: int) -> list[float]:
    """Return `steps + 1` falling levels, interpolated log-linearly for other numbers than the table's."""
    levels = OPTIMAL_STEPS[model_type]
    return list(levels) if steps + 1 == len(levels) else log_linear(levels, steps + 1)


def log_linear(levels: Sequence[float], count: int) -> list[float]:
    """Return that many levels from the first to the last, interpolated log-linearly."""
    places = np.linspace(0, 1, len(levels))
    rising = np.interp(np.linspace(0, 1, count), places, np.log(levels[::-1]))
    return [float(level) for level in np.exp(rising)[::-1]]
