"""Sinusoids of points in space, with frequencies that are powers of two. `N` points, `D` channels."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.nn import functional

NUM_AXES = 3
ANCHOR_OCTAVES, POINT_OCTAVES = 16, 10
ANCHOR_SEED = 123


def anchor_sinusoids(num_points: int, channels: int) -> torch.Tensor:
    """Return the sinusoids [1, N, D], float32, of the first points of a scrambled Sobol sequence in the unit cube.

    The tokens of a latent stand for them.
    """
    sobol: Any = torch.quasirandom.SobolEngine
    points: torch.Tensor = sobol(NUM_AXES, scramble=True, seed=ANCHOR_SEED).draw(num_points)
    num_frequencies = channels // NUM_AXES // 2
    octaves = torch.arange(ANCHOR_OCTAVES, dtype=torch.float32)
    more = max(0, num_frequencies - ANCHOR_OCTAVES)
    between = torch.arange(more, dtype=torch.float32) / max(more, 1) * ANCHOR_OCTAVES
    return _sinusoids(points[None], torch.pow(2.0, torch.cat([octaves, between])[:num_frequencies]) * 2.0, channels)


def point_sinusoids(points: torch.Tensor, channels: int) -> torch.Tensor:
    """Return the sinusoids [B, N, D], float32, of points [B, N, 3] in the unit cube."""
    steps = torch.linspace(0.0, POINT_OCTAVES, channels // NUM_AXES // 2, dtype=torch.float32, device=points.device)
    return _sinusoids(points, torch.pow(2.0, steps), channels)


def _sinusoids(points: torch.Tensor, frequencies: torch.Tensor, channels: int) -> torch.Tensor:
    """Return the sines and cosines of each axis in turn, and zeros in the channels that are left."""
    angles = points.float()[..., None] * frequencies * math.pi  # [B, N, 3, F]
    found = torch.cat([angles.sin(), angles.cos()], dim=-1).flatten(-2)
    return functional.pad(found, (0, channels - found.shape[-1]))
