"""Activations of vocoders at twice the sample rate (`engine/layers/alias_free.py`), with a magnitude or without.

`B` batch, `C` channels, `S` samples.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.layers.alias_free import KERNEL, RATIO, AliasFree, UpFilter, snake

REACH = KERNEL // RATIO + 1  # samples on either side that an output depends on


class Snake(nn.Module):
    """Periodic activation (Liu et al. 2020, arXiv 2006.08195), with a frequency for each channel.

    `has_magnitude`: the second logarithm, of the magnitude, is a parameter of its own.
    """

    def __init__(self, channels: int, *, has_magnitude: bool) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.empty(channels))
        if has_magnitude:
            self.beta = nn.Parameter(torch.empty(channels))
        self.has_magnitude = has_magnitude

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        frequency = torch.exp(self.alpha.to(x)[:, None])
        return snake(x, frequency, torch.exp(self.beta.to(x)[:, None]) if self.has_magnitude else frequency)


class UpFilterByPhase(UpFilter):
    """Interpolation [B, C, S] -> [B, C, 2 S]: each of two in turn by every second tap, of samples whose ends are held.

    That is a transposed convolution, computed as a plain one, which is some times as fast.
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        taps = self.filter.to(x).view(-1).flip(0) * RATIO
        phases = torch.stack([functional.pad(taps[0::2], (0, 1)), functional.pad(taps[1::2], (1, 0))])[:, None]
        padded = functional.pad(x, (KERNEL // 4, KERNEL // 4), mode="replicate")
        filtered = functional.conv1d(padded, phases.repeat(x.shape[1], 1, 1), groups=x.shape[1])
        return filtered.reshape(*x.shape[:2], RATIO, -1).transpose(2, 3).flatten(2)


class FilteredSnake(AliasFree):
    """`Snake` at twice the sample rate, [B, C, S] -> [B, C, S]."""

    def __init__(self, channels: int, *, has_magnitude: bool) -> None:
        super().__init__(Snake(channels, has_magnitude=has_magnitude))
        self.upsample = UpFilterByPhase()
