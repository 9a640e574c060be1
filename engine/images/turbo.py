"""Turbo, Google's map of numbers to colours for depth, by the polynomials of Mikhailov and Ruiz (2019)."""

from __future__ import annotations

import torch

RED = (0.13572138, 4.61539260, -42.66032258, 132.13108234, -152.94239396, 59.28637943)
GREEN = (0.09140261, 2.19418839, 4.84296658, -14.18503333, 4.27729857, 2.82956604)
BLUE = (0.10667330, 12.64194608, -60.58204836, 110.36276771, -89.90310912, 27.34824973)


def turbo(values: torch.Tensor) -> torch.Tensor:
    """Return the colours [..., 3] of values [...] of 0..1, blue to red; others are clamped."""
    x = values.clamp(0, 1)
    channels = []
    for coefficients in (RED, GREEN, BLUE):
        channel = torch.zeros_like(x)
        for coefficient in reversed(coefficients):
            channel = channel * x + coefficient
        channels.append(channel)
    return torch.stack(channels, dim=-1).clamp(0, 1)
