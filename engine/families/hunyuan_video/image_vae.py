"""The autoencoder of HunyuanImage 2.1, of any width and depth (its shortcuts: Chen et al. 2024, arXiv 2410.10733).

Images `[B, 3, H, W]` in -1..1, latents `[B, C, H/32, W/32]` unscaled. A change of size moves cells into channels, or
channels into cells, beside a convolution. Module names are those of the original checkpoints.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.layers.basic import Conv2d
from darkroom.engine.layers.vae_kl import Middle, ResnetBlock

# Bytes of working memory per pixel and byte of the dtype, of the 128-channel network (ComfyUI's).
BYTES_PER_PIXEL = 700
MEASURED_CHANNELS = 128


@dataclass(frozen=True, slots=True)
class HunyuanImageVaeConfig:
    """Configuration of the network. `level_channels`: largest image first; every level but the last halves it."""

    level_channels: tuple[int, ...]
    latent_channels: int = 64
    blocks_per_level: int = 2
    image_channels: int = 3


def cells_in_channels(x: torch.Tensor) -> torch.Tensor:
    """Return cells [B, C, H, W] as channels [B, 4 * C, H/2, W/2], those of a cell's place next to each other."""
    batch, channels, height, width = x.shape
    cells = x.view(batch, channels, height // 2, 2, width // 2, 2)
    return cells.permute(0, 3, 5, 1, 2, 4).reshape(batch, channels * 4, height // 2, width // 2)


def channels_in_cells(x: torch.Tensor) -> torch.Tensor:
    """Return channels [B, 4 * C, h, w] as cells [B, C, 2 * h, 2 * w]."""
    batch, channels, height, width = x.shape
    places = x.view(batch, 2, 2, channels // 4, height, width)
    return places.permute(0, 3, 4, 1, 5, 2).reshape(batch, channels // 4, height * 2, width * 2)


def grouped_means(x: torch.Tensor, channels: int) -> torch.Tensor:
    """Return `channels` means of neighbouring channels [B, C, ...]."""
    return x.reshape(x.shape[0], channels, -1, *x.shape[2:]).mean(dim=2)


class ShuffledDown(nn.Module):
    def __init__(self, in_channels: int, channels: int) -> None:
        super().__init__()
        self.channels = channels
        self.conv = Conv2d(in_channels, channels // 4, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return cells_in_channels(self.conv(x)) + grouped_means(cells_in_channels(x), self.channels)


class ShuffledUp(nn.Module):
    def __init__(self, in_channels: int, channels: int) -> None:
        super().__init__()
        self.repeats = channels * 4 // in_channels
        self.conv = Conv2d(in_channels, channels * 4, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return channels_in_cells(self.conv(x)) + channels_in_cells(x.repeat_interleave(self.repeats, dim=1))


class ShuffledLevel(nn.Module):
    """Blocks at one size, followed by a change of size where there is a next level."""

    def __init__(self, channels: int, num_blocks: int, *, down: int | None = None, up: int | None = None) -> None:
        super().__init__()
        self.block = nn.ModuleList(ResnetBlock(channels, channels) for _ in range(num_blocks))
        if down is not None:
            self.downsample = ShuffledDown(channels, down)
        if up is not None:
            self.upsample = ShuffledUp(channels, up)
        self.resize = "downsample" if down is not None else "upsample" if up is not None else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.block:
            x = block(x)
        return x if self.resize is None else self.get_submodule(self.resize)(x)


def _next_of(levels: Sequence[int]) -> list[int | None]:
    return [*levels[1:], None]


class HunyuanImageEncoder(nn.Module):
    def __init__(self, config: HunyuanImageVaeConfig) -> None:
        super().__init__()
        levels, last = config.level_channels, config.level_channels[-1]
        self.conv_in = Conv2d(config.image_channels, levels[0], 3, padding=1)
        self.down = nn.ModuleList(
            ShuffledLevel(channels, config.blocks_per_level, down=following)
            for channels, following in zip(levels, _next_of(levels), strict=True)
        )
        self.mid = Middle(last)
        self.norm_out = nn.GroupNorm(32, last, eps=1e-6)
        self.conv_out = Conv2d(last, config.latent_channels * 2, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv_in(x)
        for level in self.down:
            x = level(x)
        x = self.mid(x)
        out: torch.Tensor = self.conv_out(functional.silu(self.norm_out(x)))
        return out + grouped_means(x, self.conv_out.out_channels)


class HunyuanImageDecoder(nn.Module):
    def __init__(self, config: HunyuanImageVaeConfig) -> None:
        super().__init__()
        levels = config.level_channels[::-1]
        self.repeats = levels[0] // config.latent_channels
        self.conv_in = Conv2d(config.latent_channels, levels[0], 3, padding=1)
        self.mid = Middle(levels[0])
        self.up = nn.ModuleList(
            ShuffledLevel(channels, config.blocks_per_level + 1, up=following)
            for channels, following in zip(levels, _next_of(levels), strict=True)
        )
        self.norm_out = nn.GroupNorm(32, levels[-1], eps=1e-6)
        self.conv_out = Conv2d(levels[-1], config.image_channels, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.mid(self.conv_in(x) + x.repeat_interleave(self.repeats, dim=1))
        for level in self.up:
            x = level(x)
        out: torch.Tensor = self.conv_out(functional.silu(self.norm_out(x)))
        return out


class HunyuanImageVae(nn.Module):
    """The autoencoder. `encode` returns the mean of the posterior."""

    def __init__(self, config: HunyuanImageVaeConfig) -> None:
        super().__init__()
        self.config = config
        self.latent_channels = config.latent_channels
        self.downscale_ratio = 2 ** (len(config.level_channels) - 1)
        self.encoder, self.decoder = HunyuanImageEncoder(config), HunyuanImageDecoder(config)

    @property
    def encode_bytes_per_pixel(self) -> int:
        """Bytes of working memory per pixel and byte of the dtype, for encoding."""
        return BYTES_PER_PIXEL * self.config.level_channels[0] // MEASURED_CHANNELS

    @property
    def decode_bytes_per_cell(self) -> int:
        """Bytes of working memory per latent cell and byte of the dtype, for decoding."""
        cell_px: int = self.downscale_ratio**2
        return self.encode_bytes_per_pixel * cell_px

    def encode(self, images: torch.Tensor) -> torch.Tensor:
        """Return the mean of the posterior [B, C, h, w]."""
        moments: torch.Tensor = self.encoder(images)
        return moments.chunk(2, dim=1)[0]

    def decode(self, latents: torch.Tensor) -> torch.Tensor:
        """Return the images [B, 3, H, W] of latents."""
        images: torch.Tensor = self.decoder(latents)
        return images
