"""Activations of audio networks without aliasing (Lee et al. 2022, BigVGAN, arXiv 2206.04658, section 3.2).

A waveform is brought to twice its rate, passes the activation there, and is brought back, both by low-pass filters:
sincs in a Kaiser window. Files have the filters as tensors. `B` batch, `C` channels, `S` samples. Module names are
those of the original checkpoints.
"""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

RATIO, KERNEL = 2, 12
NO_DIVISION_BY_ZERO = 1e-9
FILTER_NAMES = ("upsample.filter", "downsample.lowpass.filter")  # behind the name of an `AliasFree`


def kaiser_sinc(cutoff: float = 0.5 / RATIO, half_width: float = 0.6 / RATIO, kernel: int = KERNEL) -> torch.Tensor:
    """Return a low-pass filter [1, 1, kernel] of sum 1, float32. Frequencies are in those of the samples."""
    half = kernel // 2
    attenuation_db = 2.285 * (half - 1) * math.pi * 4 * half_width + 7.95
    if attenuation_db > 50.0:
        beta = 0.1102 * (attenuation_db - 8.7)
    elif attenuation_db >= 21.0:
        beta = 0.5842 * (attenuation_db - 21.0) ** 0.4 + 0.07886 * (attenuation_db - 21.0)
    else:
        beta = 0.0
    window = torch.kaiser_window(kernel, periodic=False, beta=beta)
    times = torch.arange(kernel) - half + (0.5 if kernel % 2 == 0 else 0.0)
    response = window * torch.sinc(2 * cutoff * times)
    return (response / response.sum()).view(1, 1, kernel)


class SnakeBeta(nn.Module):
    """A periodic activation of `[B, C, S]`, with a frequency and a size for each channel, which are logarithms."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha, self.beta = (nn.Parameter(torch.empty(channels)) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        alpha, beta = (item.to(x.dtype).exp()[None, :, None] for item in (self.alpha, self.beta))
        return snake(x, alpha, beta)


class Snake(nn.Module):
    """A periodic activation of `[B, C, S]` whose size is its frequency for each channel, not as a logarithm."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.empty(1, channels, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        alpha = self.alpha.to(x.dtype)
        return snake(x, alpha, alpha)


def snake(x: torch.Tensor, alpha: torch.Tensor, beta: torch.Tensor) -> torch.Tensor:
    """Return x + sin(alpha x)^2 / beta of `[B, C, S]`; both are [1, C, 1]."""
    return x + torch.sin(alpha * x).square() * (beta + NO_DIVISION_BY_ZERO).reciprocal()


class UpFilter(nn.Module):
    """Twice as many samples of `[B, C, S]`."""

    def __init__(self) -> None:
        super().__init__()
        self.filter = nn.Parameter(torch.empty(1, 1, KERNEL))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        channels, edge = x.shape[1], KERNEL // RATIO - 1
        padded = functional.pad(x, (edge, edge), mode="replicate")
        kernels = self.filter.to(x.dtype).expand(channels, -1, -1)
        out = functional.conv_transpose1d(padded, kernels, stride=RATIO, groups=channels) * RATIO
        start = edge * RATIO + (KERNEL - RATIO) // 2
        return out[..., start : start + x.shape[-1] * RATIO]


class LowPass(nn.Module):
    """Half as many samples of `[B, C, S]`."""

    def __init__(self) -> None:
        super().__init__()
        self.filter = nn.Parameter(torch.empty(1, 1, KERNEL))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        padded = functional.pad(x, (KERNEL // 2 - 1, KERNEL // 2), mode="replicate")
        kernels = self.filter.to(x.dtype).expand(x.shape[1], -1, -1)
        return functional.conv1d(padded, kernels, stride=RATIO, groups=x.shape[1])


class DownFilter(nn.Module):
    """The low-pass filter, under the name that files have for it."""

    def __init__(self) -> None:
        super().__init__()
        self.lowpass = LowPass()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.lowpass(x)
        return out


class AliasFree(nn.Module):
    """An activation at twice the rate of `[B, C, S]`."""

    def __init__(self, activation: nn.Module) -> None:
        super().__init__()
        self.act, self.upsample, self.downsample = activation, UpFilter(), DownFilter()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.downsample(self.act(self.upsample(x)))
        return out
