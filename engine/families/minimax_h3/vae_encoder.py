"""The encoder of MiniMax H3's video autoencoder: a causal 3-D convolutional network, of any number of channels.

Clips `[B, 3, F, H, W]`, moments `[B, 2 C, f, H/16, W/16]`. A convolution of a frame reads two frames before it, which
are zeros in front of the first one, and reflects the image at its edges. Norms see one frame at a time. Module names
are those of the published file.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.layers.video_cells import Stride

NORM_GROUPS, NORM_EPS = 32, 1e-6
# Frames, rows and columns that become one at the end of each level; None where the size stays.
LEVEL_STRIDES: tuple[Stride | None, ...] = ((1, 2, 2), (2, 2, 2), (2, 2, 2), (1, 2, 2), None, None)
LEAST_PX = 32  # a side: the last levels reflect an image of two cells


class PastConv3d(nn.Conv3d):
    """A convolution of each frame with the two before it; zeros before the first, the image reflected at its edges."""

    def __init__(self, in_channels: int, channels: int, *, stride: Stride = (1, 1, 1), reflects: bool = True) -> None:
        super().__init__(in_channels, channels, 3, stride=stride)
        self.edge = 1 if reflects else 0

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        edges = (self.edge,) * 4
        padded = functional.pad(input, (*edges, 0, 0), mode="reflect") if self.edge else input
        if padded.shape[2] == 1:  # what precedes a single frame adds nothing
            return functional.conv3d(padded, self.weight[:, :, -1:], self.bias, self.stride)
        return super().forward(functional.pad(padded, (0, 0, 0, 0, 2, 0)))


class FrameNorm(nn.GroupNorm):
    """A group norm of each frame of `[B, C, F, h, w]` by itself."""

    def __init__(self, channels: int) -> None:
        super().__init__(NORM_GROUPS, channels, NORM_EPS)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        frames = input.transpose(1, 2).flatten(0, 1)  # [B F, C, h, w]
        return super().forward(frames).reshape(input.shape[0], -1, *frames.shape[1:]).transpose(1, 2)


class ResidualBlock(nn.Module):
    def __init__(self, in_channels: int, channels: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = FrameNorm(in_channels), FrameNorm(channels)
        self.conv1, self.conv2 = PastConv3d(in_channels, channels), PastConv3d(channels, channels)
        self.nin_shortcut = nn.Identity() if in_channels == channels else nn.Conv3d(in_channels, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = self.conv1(functional.silu(self.norm1(x)))
        inner = self.conv2(functional.silu(self.norm2(inner)))
        out: torch.Tensor = inner + self.nin_shortcut(x)
        return out


class Downsample(nn.Module):
    """A change of size, which reflects the last row and the last column."""

    def __init__(self, channels: int, stride: Stride) -> None:
        super().__init__()
        self.conv = PastConv3d(channels, channels, stride=stride, reflects=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.conv(functional.pad(x, (0, 1, 0, 1, 0, 0), mode="reflect"))
        return out


class EncoderLevel(nn.Module):
    """Blocks at one size, and the change of size behind them where there is one."""

    def __init__(self, in_channels: int, channels: int, num_blocks: int, stride: Stride | None) -> None:
        super().__init__()
        widths = [in_channels, *[channels] * num_blocks]
        self.block = nn.ModuleList(ResidualBlock(*pair) for pair in pairwise(widths))
        self.downsample = nn.Identity() if stride is None else Downsample(channels, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.block:
            x = block(x)
        out: torch.Tensor = self.downsample(x)
        return out


class ClipEncoder(nn.Module):
    """`forward([B, 3, F, H, W])` -> moments `[B, 2 * latent_channels, f, H/16, W/16]`."""

    def __init__(
        self, level_channels: tuple[int, ...], blocks_per_level: int, image_channels: int, latent_channels: int
    ) -> None:
        super().__init__()
        first, last = level_channels[0], level_channels[-1]
        self.conv_in = PastConv3d(image_channels, first)
        levels = zip(pairwise((first, *level_channels)), LEVEL_STRIDES, strict=True)
        self.down = nn.ModuleList(EncoderLevel(*pair, blocks_per_level, stride) for pair, stride in levels)
        self.norm_out = FrameNorm(last)
        self.conv_out = PastConv3d(last, 2 * latent_channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv_in(x)
        for level in self.down:
            x = level(x)
        out: torch.Tensor = self.conv_out(functional.silu(self.norm_out(x)))
        return out
