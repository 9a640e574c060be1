"""Layers of MediaPipe's networks of faces (Bazarevsky et al. 2019, arXiv 1907.05047).

`B` images, `C` channels, `H W` pixels or cells. Names of modules are those of published files.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.layers.basic import Conv2d

Blocks = tuple[tuple[int, int, int], ...]
"""Channels of input and output, and stride, of each block."""


def padded_for(x: torch.Tensor, kernel: int, stride: int) -> torch.Tensor:
    """Return [B, C, H, W] with zeros around, so that a convolution has a cell for every `stride` cells.

    Where their number is odd, the right and the bottom have one more (TensorFlow's rule SAME).
    """
    missing = [max((-(-size // stride) - 1) * stride + kernel - size, 0) for size in x.shape[-2:]]
    above, left = (size // 2 for size in missing)
    return functional.pad(x, (left, missing[1] - left, above, missing[0] - above))


def conv_of_pixels(in_channels: int, out_channels: int) -> Conv2d:
    """Build a convolution of single pixels."""
    return Conv2d(in_channels, out_channels, 1)


def conv_of_channels(channels: int, stride: int = 1) -> Conv2d:
    """Build a convolution of 3x3 cells of single channels, without padding."""
    return Conv2d(channels, channels, 3, stride, groups=channels)


class BlazeBlock(nn.Module):
    """A separable convolution with what it got added: halved where it strides, zeros as its further channels."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.further_channels = out_channels - in_channels
        self.depthwise = conv_of_channels(in_channels, stride)
        self.pointwise = conv_of_pixels(in_channels, out_channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = functional.max_pool2d(x, 2) if self.stride > 1 else x
        if self.further_channels:
            kept = functional.pad(kept, (0, 0, 0, 0, 0, self.further_channels))
        convolved = self.depthwise(padded_for(x, 3, self.stride))
        return self._activated(self.pointwise(self._inner_activated(convolved)) + kept)

    def _inner_activated(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def _activated(self, x: torch.Tensor) -> torch.Tensor:
        return functional.relu(x)


class LeakyBlazeBlock(BlazeBlock):
    """The same with leaky activations, whose slopes are weights, and one more between its convolutions."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__(in_channels, out_channels, stride)
        self.prelu_dwise = nn.PReLU(in_channels)
        self.prelu_out = nn.PReLU(out_channels)

    def _inner_activated(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.prelu_dwise(x)
        return out

    def _activated(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.prelu_out(x)
        return out


def rows_of(x: torch.Tensor, values: int) -> torch.Tensor:
    """Return the values of each cell's anchors, [B, H W anchors, values], of [B, anchors values, H, W]."""
    return x.permute(0, 2, 3, 1).reshape(x.shape[0], -1, values)
