"""Deformable convolution with modulation (Zhu et al. 2018, arXiv 1811.11168).

`B` images, `C` channels, `H W` pixels, `K` taps of the kernel.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.layers.basic import Conv2d


class DeformableConv2d(nn.Module):
    """A convolution whose taps are moved and weighed at each pixel as two other convolutions say."""

    def __init__(self, in_channels: int, out_channels: int, size: int) -> None:
        super().__init__()
        self.offset_conv = Conv2d(in_channels, 2 * size**2, size, padding=size // 2)
        self.modulator_conv = Conv2d(in_channels, size**2, size, padding=size // 2)
        self.regular_conv = Conv2d(in_channels, out_channels, size, padding=size // 2, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights = 2 * torch.sigmoid(self.modulator_conv(x))
        return deformed_convolution(x, self.offset_conv(x), weights, self.regular_conv.weight)


def deformed_convolution(
    x: torch.Tensor, offsets: torch.Tensor, weights: torch.Tensor, kernel: torch.Tensor
) -> torch.Tensor:
    """Convolve [B, C, H, W] with a square kernel [O, C, size, size], the size kept; outside of the image is 0.

    `offsets` [B, 2 K, H, W] move each tap down and right, in pixels; `weights` [B, K, H, W] multiply it. One tap is
    gathered after the other, so that working memory does not grow with the kernel.
    """
    _, _, height, width = x.shape
    size = kernel.shape[-1]
    rows = torch.arange(height, device=x.device, dtype=x.dtype)[:, None]
    columns = torch.arange(width, device=x.device, dtype=x.dtype)
    out = x.new_zeros(x.shape[0], kernel.shape[0], height, width)
    for tap in range(size * size):
        down, right = tap // size, tap % size
        y = rows + (down - size // 2) + offsets[:, 2 * tap]
        x_position = columns + (right - size // 2) + offsets[:, 2 * tap + 1]
        # Borders are -1 and 1 here, so that a side of one pixel needs no other formula.
        grid = torch.stack(((2 * x_position + 1) / width - 1, (2 * y + 1) / height - 1), dim=-1)
        gathered = functional.grid_sample(x, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
        tap_kernel = kernel[:, :, down, right, None, None]
        out += functional.conv2d(gathered * weights[:, tap : tap + 1], tap_kernel)
    return out
