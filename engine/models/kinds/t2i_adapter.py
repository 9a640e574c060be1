"""T2I-Adapter (Mou et al. 2023, arXiv 2302.08453): a small network that reads an image and controls the UNet.

Module names are those of the original checkpoints. `B` batch, `H W` pixels, `u` how many pixels a side become channels.
It reads neither the latent nor the time, so one result serves all steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

PIXELS_PER_CELL = 8
UPSCALE_ALGORITHM = "nearest-exact"

Features = dict[str, list[torch.Tensor | None]]  # place -> additions of the UNet's blocks, last block first


@dataclass(frozen=True, slots=True)
class AdapterConfig:
    """Shape of a full adapter. `is_xl`: for a UNet of three levels instead of four."""

    in_channels: int
    channels: tuple[int, ...]
    kernel_size: int = 1
    downs_by_conv: bool = False
    is_xl: bool = False
    blocks_per_level: int = 2

    @property
    def unshuffle(self) -> int:
        return 16 if self.is_xl else 8

    @property
    def halving_levels(self) -> tuple[int, ...]:
        return (2,) if self.is_xl else (1, 2, 3)


class Adapter(nn.Module):
    """Full adapter: `forward(hint [B, C, H, W])` returns additions to the UNet's input (and for XL middle) blocks."""

    compression_ratio, upscale_algorithm = PIXELS_PER_CELL, UPSCALE_ALGORITHM

    def __init__(self, config: AdapterConfig) -> None:
        super().__init__()
        self.config = config
        self.unshuffle_amount = config.unshuffle
        self.input_channels = config.in_channels // config.unshuffle**2
        self.unshuffle = nn.PixelUnshuffle(config.unshuffle)
        self.conv_in = nn.Conv2d(config.in_channels, config.channels[0], 3, padding=1)
        self.body = nn.ModuleList()
        before = config.channels[0]
        for level, channels in enumerate(config.channels):
            for index in range(config.blocks_per_level):
                halves = index == 0 and level in config.halving_levels
                self.body.append(AdapterBlock(before, channels, config, halves=halves))
                before = channels

    def forward(self, hint: torch.Tensor) -> Features:
        x = self.conv_in(self.unshuffle(hint))
        levels = []
        for index, block in enumerate(self.body):
            x = block(x)
            if (index + 1) % self.config.blocks_per_level == 0:
                levels.append(x)
        return _for_xl(levels) if self.config.is_xl else _third_of_each(levels)


class AdapterBlock(nn.Module):
    """Two convolutions with a residual connection, optionally at half the size."""

    def __init__(self, in_channels: int, out_channels: int, config: AdapterConfig, *, halves: bool) -> None:
        super().__init__()
        size, padding = config.kernel_size, config.kernel_size // 2
        self.down_opt = Halving(in_channels, by_conv=config.downs_by_conv) if halves else None
        is_changed = in_channels != out_channels
        self.in_conv = nn.Conv2d(in_channels, out_channels, size, padding=padding) if is_changed else None
        self.block1 = nn.Conv2d(out_channels, out_channels, 3, padding=1)
        self.act = nn.ReLU()
        self.block2 = nn.Conv2d(out_channels, out_channels, size, padding=padding)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.down_opt is not None:
            x = self.down_opt(x)
        if self.in_conv is not None:
            x = self.in_conv(x)
        changed: torch.Tensor = self.block2(self.act(self.block1(x)))
        return changed + x


class Halving(nn.Module):
    """Downsampling to half the size, rounded up for an odd side, as in the UNet."""

    def __init__(self, channels: int, *, by_conv: bool) -> None:
        super().__init__()
        self.op = nn.Conv2d(channels, channels, 3, stride=2, padding=1) if by_conv else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.op is not None:
            convolved: torch.Tensor = self.op(x)
            return convolved
        padding = (x.shape[2] % 2, x.shape[3] % 2)
        return nn.functional.avg_pool2d(x, kernel_size=2, stride=2, padding=padding)


class LightAdapter(nn.Module):
    """Smaller adapter with narrow layers; otherwise as `Adapter`."""

    compression_ratio, upscale_algorithm = PIXELS_PER_CELL, UPSCALE_ALGORITHM

    def __init__(self, in_channels: int, channels: Sequence[int] = (320, 640, 1280, 1280), num_blocks: int = 4) -> None:
        super().__init__()
        self.unshuffle_amount = 8
        self.input_channels = in_channels // self.unshuffle_amount**2
        self.unshuffle = nn.PixelUnshuffle(self.unshuffle_amount)
        self.body = nn.ModuleList()
        before = in_channels
        for level, width in enumerate(channels):
            self.body.append(Extractor(before, width, num_blocks, halves=level > 0))
            before = width

    def forward(self, hint: torch.Tensor) -> Features:
        x, levels = self.unshuffle(hint), []
        for extractor in self.body:
            x = extractor(x)
            levels.append(x)
        return _third_of_each(levels)


class Extractor(nn.Module):
    def __init__(self, in_channels: int, out_channels: int, num_blocks: int, *, halves: bool) -> None:
        super().__init__()
        inner = out_channels // 4
        self.down_opt = Halving(in_channels, by_conv=False) if halves else None
        self.in_conv = nn.Conv2d(in_channels, inner, 1)
        self.body = nn.Sequential(*(LightBlock(inner) for _ in range(num_blocks)))
        self.out_conv = nn.Conv2d(inner, out_channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.down_opt is not None:
            x = self.down_opt(x)
        extracted: torch.Tensor = self.out_conv(self.body(self.in_conv(x)))
        return extracted


class LightBlock(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.block1 = nn.Conv2d(channels, channels, 3, padding=1)
        self.act = nn.ReLU()
        self.block2 = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        changed: torch.Tensor = self.block2(self.act(self.block1(x)))
        return changed + x


def _third_of_each(levels: Sequence[torch.Tensor]) -> Features:
    """Place additions for a UNet of four levels: the last of the three input blocks of each level gets one."""
    additions: list[torch.Tensor | None] = []
    for level in levels:
        additions += [None, None, level]
    return {"input": additions[::-1]}


def _for_xl(levels: Sequence[torch.Tensor]) -> Features:
    """Place additions for a UNet of three levels: input blocks four, six and nine, and the middle, get one."""
    first, second, third, last = levels
    additions = [None, None, None, first, None, second, None, None, third, None]
    return {"input": additions[::-1], "middle": [last]}
