"""Numbers as sinusoids of falling frequency, cosines first (Vaswani et al. 2017, arXiv 1706.03762).

They round in another order than `unet_layers.py::timestep_embedding`, which shows in images: each network has
the order of its training. `B` batch, `W` width.
"""

from __future__ import annotations

import math

import torch


def sinusoids_scaled_last(times: torch.Tensor, width: int, factor: float) -> torch.Tensor:
    """Embed times [B] -> [B, W], float32, as angles that are multiplied by `factor` last.

    With other noise levels than a network's the angles are so large that their rounding shows.
    """
    half = width // 2
    steps = torch.arange(half, dtype=torch.float32, device=times.device)
    angles = factor * (times[:, None].float() * torch.exp(-math.log(10000) * steps / half))
    return torch.cat([angles.cos(), angles.sin()], dim=-1)


def sinusoids_of_powers(times: torch.Tensor, width: int) -> torch.Tensor:
    """Embed times [B] -> [B, W], float32, by frequencies that are powers of 10000."""
    half = width // 2
    steps = torch.pow(10000, -torch.arange(half, device=times.device, dtype=torch.float32).div(half))
    angles = torch.outer(times.float(), steps)
    return torch.cat([torch.cos(angles), torch.sin(angles)], dim=1)
