"""Layers of Mage-VAE: blocks over cells, attention in windows, and the embedding of time 0.

`B` batch, `D` channels, `h w` cells. Module names are those of the checkpoints.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.layers.basic import Conv2d, Linear
from darkroom.engine.layers.vae_kl import AttnBlock

WINDOW = 32  # cells a side
WAVES = 256
NORM_EPS = 1e-6


class ChannelsNorm(nn.LayerNorm):
    """Normalisation of the channels of each cell [B, D, h, w]."""

    def __init__(self, channels: int, *, is_affine: bool = True) -> None:
        super().__init__(channels, eps=NORM_EPS, elementwise_affine=is_affine)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.movedim(1, -1)).movedim(-1, 1).contiguous()


class TimeZeroEmbedder(nn.Module):
    """`forward(like [B, ...])` -> the embedding [1, D] of time 0, the only one at which the autoencoder works."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(Linear(WAVES, hidden_size), nn.SiLU(), Linear(hidden_size, hidden_size))

    def forward(self, like: torch.Tensor) -> torch.Tensor:
        cosines, sines = like.new_ones(1, WAVES // 2), like.new_zeros(1, WAVES // 2)
        out: torch.Tensor = self.mlp(torch.cat([cosines, sines], dim=1))
        return out


class CellBlock(nn.Module):
    """Convolutions of a cell with its neighbours, gated by the mean of all cells, then layers of each cell.

    Both are modulated by the time where the block `is_timed`.
    """

    def __init__(self, channels: int, factor: int, *, is_timed: bool = True) -> None:
        super().__init__()
        self.conv1 = Conv2d(channels, channels, 1)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, groups=channels)
        self.conv3 = Conv2d(channels, channels, 1)
        self.ca = nn.Sequential(nn.AdaptiveAvgPool2d(1), Conv2d(channels, channels, 1), nn.Sigmoid())
        self.conv4, self.conv5 = Conv2d(channels, factor * channels, 1), Conv2d(factor * channels, channels, 1)
        self.norm1, self.norm2 = (ChannelsNorm(channels, is_affine=not is_timed) for _ in range(2))
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), Linear(channels, 6 * channels)) if is_timed else None

    def forward(self, x: torch.Tensor, time: torch.Tensor | None = None) -> torch.Tensor:
        """Return [B, D, h, w]. `time` is [1, D]."""
        if self.adaLN_modulation is None or time is None:
            mixed: torch.Tensor = x + self._mixed(self.norm1(x))
            return mixed + self._widened(self.norm2(mixed))
        parts: tuple[torch.Tensor, ...] = self.adaLN_modulation(time)[..., None, None].chunk(6, dim=1)
        shift, scale, gate, second_shift, second_scale, second_gate = parts
        changed = x + gate * self._mixed(self.norm1(x) * (1 + scale) + shift)
        return changed + second_gate * self._widened(self.norm2(changed) * (1 + second_scale) + second_shift)

    def _mixed(self, x: torch.Tensor) -> torch.Tensor:
        cells = functional.gelu(self.conv2(self.conv1(x)))
        out: torch.Tensor = self.conv3(cells * self.ca(cells))
        return out

    def _widened(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.conv5(functional.gelu(self.conv4(x)))
        return out


class WindowAttention(AttnBlock):
    """Self-attention of the cells of windows of 32 cells a side, the last ones filled up by their border."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        height, width = x.shape[-2:]
        padded = functional.pad(self.norm(x), (0, -width % WINDOW, 0, -height % WINDOW), mode="replicate")
        rows, columns = padded.shape[-2] // WINDOW, padded.shape[-1] // WINDOW
        cells = padded.reshape(*padded.shape[:2], rows, WINDOW, columns, WINDOW)
        windows = cells.permute(0, 2, 4, 1, 3, 5).flatten(0, 2)  # [B * windows, D, 32, 32]
        attended = self.attended(windows).view(x.shape[0], rows, columns, -1, WINDOW, WINDOW)
        image = attended.permute(0, 3, 1, 4, 2, 5).flatten(4, 5).flatten(2, 3)
        return x + image[..., :height, :width]
