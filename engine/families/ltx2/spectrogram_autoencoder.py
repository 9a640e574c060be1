"""The autoencoder of LTX-2 between log-mel spectrograms and latents: causal along time, of any sizes.

Spectrograms are `[B, C, N, M]` (`C` channels of audio, `N` frames, `M` mel bands), latents `[B, c, T, M / 4]`: the
first of them is one frame, each later one four. Module names are those of the published checkpoints.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.layers.basic import Conv2d

NORM_EPS = 1e-6


@dataclass(frozen=True, slots=True)
class SpectrogramHalfConfig:
    """Configuration of the encoder or the decoder. `multipliers`: channels of the levels, finest first, in `channels`.

    `ends_with_tanh` is of the decoder.
    """

    channels: int = 128
    multipliers: tuple[int, ...] = (1, 2, 4)
    num_blocks: int = 2
    audio_channels: int = 2
    latent_channels: int = 8
    ends_with_tanh: bool = False

    @property
    def level_channels(self) -> tuple[int, ...]:
        return tuple(self.channels * multiplier for multiplier in self.multipliers)

    @property
    def reach_cells(self) -> int:
        """Earlier latent cells that an output depends on, at most: two frames of every convolution, by its level."""
        return 8 * (self.num_blocks + 1) + 14


def normed(x: torch.Tensor) -> torch.Tensor:
    """Divide the channels [B, C, N, M] of every cell by their root mean square."""
    return x / torch.sqrt(torch.mean(x**2, dim=1, keepdim=True) + NORM_EPS)


class CausalConv2d(nn.Module):
    """A convolution that looks at no later frames; silence comes before the first one."""

    def __init__(self, in_channels: int, out_channels: int, kernel: int = 3) -> None:
        super().__init__()
        self.conv = Conv2d(in_channels, out_channels, kernel)
        self.extra = kernel - 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        half = self.extra // 2
        out: torch.Tensor = self.conv(functional.pad(x, (half, self.extra - half, self.extra, 0)))
        return out


class ResidualBlock(nn.Module):
    def __init__(self, in_channels: int, channels: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = CausalConv2d(in_channels, channels), CausalConv2d(channels, channels)
        self.nin_shortcut = CausalConv2d(in_channels, channels, 1) if in_channels != channels else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.conv1(functional.silu(normed(x)))
        h = self.conv2(functional.silu(normed(h)))
        out: torch.Tensor = self.nin_shortcut(x) + h
        return out


class Middle(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.block_1, self.block_2 = ResidualBlock(channels, channels), ResidualBlock(channels, channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.block_2(self.block_1(x))
        return out


class Halving(nn.Module):
    """A convolution that halves frames and bands; two frames of silence come before the first one."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = Conv2d(channels, channels, 3, stride=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.conv(functional.pad(x, (0, 1, 2, 0)))
        return out


class Doubling(nn.Module):
    """A convolution of doubled bands and frames, of which the first becomes one alone."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = CausalConv2d(channels, channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.conv(functional.interpolate(x, scale_factor=2.0, mode="nearest"))
        return out[:, :, 1:]


class Blocks(nn.Module):
    def __init__(self, in_channels: int, channels: int, num_blocks: int) -> None:
        super().__init__()
        self.block = nn.ModuleList(
            ResidualBlock(in_channels if index == 0 else channels, channels) for index in range(num_blocks)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.block:
            x = block(x)
        return x


class DownLevel(Blocks):
    """Blocks, and the way to the next level unless it is the coarsest."""

    def __init__(self, in_channels: int, channels: int, num_blocks: int, *, is_last: bool) -> None:
        super().__init__(in_channels, channels, num_blocks)
        self.downsample = nn.Identity() if is_last else Halving(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.downsample(super().forward(x))
        return out


class UpLevel(Blocks):
    """Blocks, and the way to the next level unless it is the finest."""

    def __init__(self, in_channels: int, channels: int, num_blocks: int, *, is_last: bool) -> None:
        super().__init__(in_channels, channels, num_blocks)
        self.upsample = nn.Identity() if is_last else Doubling(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.upsample(super().forward(x))
        return out


class SpectrogramEncoder(nn.Module):
    """Spectrograms [B, C, N, M] -> means and logarithms of variances [B, 2 c, T, M / 4]."""

    def __init__(self, config: SpectrogramHalfConfig) -> None:
        super().__init__()
        channels = config.level_channels
        self.conv_in = CausalConv2d(config.audio_channels, config.channels)
        self.down = nn.ModuleList(
            DownLevel(entering, leaving, config.num_blocks, is_last=level == len(channels) - 1)
            for level, (entering, leaving) in enumerate(zip((config.channels, *channels), channels, strict=False))
        )
        self.mid = Middle(channels[-1])
        self.conv_out = CausalConv2d(channels[-1], 2 * config.latent_channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv_in(x)
        for level in self.down:
            x = level(x)
        out: torch.Tensor = self.conv_out(functional.silu(normed(self.mid(x))))
        return out


class SpectrogramDecoder(nn.Module):
    """Latents [B, c, T, M / 4] -> spectrograms [B, C, 4 T - 3, M]."""

    def __init__(self, config: SpectrogramHalfConfig) -> None:
        super().__init__()
        channels = config.level_channels
        self.conv_in = CausalConv2d(config.latent_channels, channels[-1])
        self.mid = Middle(channels[-1])
        self.up = nn.ModuleList(
            UpLevel(entering, leaving, config.num_blocks + 1, is_last=level == 0)
            for level, (entering, leaving) in enumerate(zip((*channels[1:], channels[-1]), channels, strict=True))
        )
        self.conv_out = CausalConv2d(channels[0], config.audio_channels)
        self.ends_with_tanh = config.ends_with_tanh

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.mid(self.conv_in(x))
        for level in reversed(self.up):
            x = level(x)
        out: torch.Tensor = self.conv_out(functional.silu(normed(x)))
        return torch.tanh(out) if self.ends_with_tanh else out
