"""The networks of HunyuanVideo 1.5 that refine enlarged latents, before its network of super-resolution.

Latents `[B, C, f, h, w]` as the VAE has them; sizes stay. Convolutions see the two frames before: a video passes
through in pieces. Module names are those of the published files.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.families.hunyuan_video.image_refiner_vae import FramesBlock
from darkroom.engine.families.hunyuan_video.vae import RepeatedEdgeConv3d
from darkroom.engine.layers.frame_memory import FrameMemory
from darkroom.engine.layers.norms import ChannelNorm

FRAMES_AT_ONCE = 4  # latent ones
TENSORS_AT_ONCE = 6  # of a piece at the widest layer, padded ones among them
BYTES = 4  # of a number


@dataclass(frozen=True, slots=True)
class SrTo720pConfig:
    """Configuration of the network for 720 rows."""

    latent_channels: int = 32
    hidden_channels: int = 64
    num_blocks: int = 6


@dataclass(frozen=True, slots=True)
class SrTo1080pConfig:
    """Configuration of the network for 1080 rows. `level_channels`: in order of the levels."""

    level_channels: tuple[int, ...]
    latent_channels: int = 32
    blocks_per_level: int = 3


class VideoUpsampler(nn.Module, ABC):
    """`forward(latent [B, C, f, h, w])` -> the latent, refined."""

    latent_channels: int
    most_channels: int

    @abstractmethod
    def piece(self, x: torch.Tensor, memory: FrameMemory) -> torch.Tensor:
        """Return frames of a latent, refined; layers remember the ones before."""

    def working_bytes(self, shape: torch.Size) -> int:
        """Return the working memory for a latent of that shape, with the latent and its result."""
        batch, channels, frames, rows, columns = shape
        at_once = min(frames, FRAMES_AT_ONCE) * self.most_channels * TENSORS_AT_ONCE
        return BYTES * batch * rows * columns * (at_once + 2 * channels * frames)

    def forward(self, latent: torch.Tensor) -> torch.Tensor:
        memory = FrameMemory()
        return torch.cat([self.piece(part, memory) for part in torch.split(latent, FRAMES_AT_ONCE, dim=2)], dim=2)


class ResidualConvolutions(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.block = nn.ModuleDict({name: RepeatedEdgeConv3d(channels, channels) for name in ("0", "2", "4")})

    def forward(self, x: torch.Tensor, memory: FrameMemory) -> torch.Tensor:
        h = functional.silu(self.block["0"](x, memory))
        h = functional.silu(self.block["2"](h, memory))
        out: torch.Tensor = x + self.block["4"](h, memory)
        return out


class SRTo720pUpsampler(VideoUpsampler):
    """Residual convolutions, for videos of 720 rows."""

    def __init__(self, config: SrTo720pConfig) -> None:
        super().__init__()
        self.config = config
        self.latent_channels, self.most_channels = config.latent_channels, config.hidden_channels
        hidden = config.hidden_channels
        self.in_conv = RepeatedEdgeConv3d(config.latent_channels, hidden)
        self.blocks = nn.ModuleList(ResidualConvolutions(hidden) for _ in range(config.num_blocks))
        self.out_conv = RepeatedEdgeConv3d(hidden, config.latent_channels)

    def piece(self, x: torch.Tensor, memory: FrameMemory) -> torch.Tensor:
        x = self.in_conv(x, memory)
        for block in self.blocks:
            x = block(x, memory)
        out: torch.Tensor = self.out_conv(x, memory)
        return out


class UpsamplerLevel(nn.Module):
    def __init__(self, in_channels: int, channels: int, num_blocks: int) -> None:
        super().__init__()
        sizes = [in_channels, *[channels] * (num_blocks - 1)]
        self.block = nn.ModuleList(FramesBlock(size, channels) for size in sizes)

    def forward(self, x: torch.Tensor, memory: FrameMemory) -> torch.Tensor:
        for block in self.block:
            x = block(x, memory)
        return x


class SRTo1080pUpsampler(VideoUpsampler):
    """Levels of residual blocks of one size, for videos of 1080 rows."""

    def __init__(self, config: SrTo1080pConfig) -> None:
        super().__init__()
        self.config = config
        levels = config.level_channels
        self.latent_channels, self.most_channels = config.latent_channels, max(levels)
        self.repeats = levels[0] // config.latent_channels
        self.conv_in = RepeatedEdgeConv3d(config.latent_channels, levels[0])
        self.up = nn.ModuleList(
            UpsamplerLevel(before, channels, config.blocks_per_level)
            for before, channels in zip((levels[0], *levels), levels, strict=False)
        )
        self.norm_out = ChannelNorm(levels[-1], num_places=3)
        self.conv_out = RepeatedEdgeConv3d(levels[-1], config.latent_channels)

    def piece(self, x: torch.Tensor, memory: FrameMemory) -> torch.Tensor:
        x = self.conv_in(x, memory) + x.repeat_interleave(self.repeats, dim=1)
        for level in self.up:
            x = level(x, memory)
        out: torch.Tensor = self.conv_out(functional.silu(self.norm_out(x)), memory)
        return out
