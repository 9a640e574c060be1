"""Activations of vocoders at twice the sample rate, so that their harmonics do not alias (Lee et al. 2022, BigVGAN).

arXiv 2206.04658, section 3.2. Files hold the low-pass filters. `B` batch, `C` channels, `S` samples.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

RATIO, TAPS = 2, 12
LEAST_DIVISOR = 1e-9
REACH = TAPS // RATIO + 1  # samples on either side that an output depends on


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
        magnitude = torch.exp(self.beta.to(x)[:, None]) if self.has_magnitude else frequency
        return x + (1.0 / (magnitude + LEAST_DIVISOR)) * torch.sin(x * frequency).pow(2)


class Filter(nn.Module):
    """A low-pass filter, the same for all channels."""

    def __init__(self) -> None:
        super().__init__()
        self.filter = nn.Parameter(torch.empty(1, 1, TAPS))


class Upsample(Filter):
    """Interpolation [B, C, S] -> [B, C, 2 S]: each of two in turn by every second tap, of samples whose ends are held.

    That is a transposed convolution, computed as a plain one, which is some times as fast.
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        taps = self.filter.to(x).view(-1).flip(0) * RATIO
        phases = torch.stack([functional.pad(taps[0::2], (0, 1)), functional.pad(taps[1::2], (1, 0))])[:, None]
        padded = functional.pad(x, (TAPS // 4, TAPS // 4), mode="replicate")
        filtered = functional.conv1d(padded, phases.repeat(x.shape[1], 1, 1), groups=x.shape[1])
        return filtered.reshape(*x.shape[:2], RATIO, -1).transpose(2, 3).flatten(2)


class LowPass(Filter):
    """Decimation [B, C, 2 S] -> [B, C, S]."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        padded = functional.pad(x, (TAPS // 2 - 1, TAPS // 2), mode="replicate")
        taps = self.filter.to(x).expand(x.shape[1], -1, -1)
        return functional.conv1d(padded, taps, stride=RATIO, groups=x.shape[1])


class Downsample(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lowpass = LowPass()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.lowpass(x)
        return out


class FilteredSnake(nn.Module):
    """`Snake` at twice the sample rate, [B, C, S] -> [B, C, S]."""

    def __init__(self, channels: int, *, has_magnitude: bool) -> None:
        super().__init__()
        self.act = Snake(channels, has_magnitude=has_magnitude)
        self.upsample, self.downsample = Upsample(), Downsample()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.downsample(self.act(self.upsample(x)))
        return out
