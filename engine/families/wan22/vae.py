"""The causal 3-D autoencoder of Wan 2.2 5B (Wan Team 2025): cells of 16 pixels, levels with shortcuts around them.

As the one of Wan 2.1, but that images enter and leave as patches of two by two pixels, and that each level adds
means of its input's cells, or repeats of them. The one of Qwen-Image 2.1 (Qwen Team 2026) is made of the same layers
for single images with opacity, without patches. Module names are those of the original checkpoints.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.families.wan.vae import KERNEL, CausalVae, Downsample, ResidualBlock, Stack, Upsample
from darkroom.engine.layers.frame_memory import FrameMemory
from darkroom.engine.layers.shapes import Shapes
from darkroom.engine.layers.video_cells import patched, unpatched

# Bytes of working memory per pixel of a frame and byte of the dtype, of the published network (ComfyUI's).
ENCODE_BYTES_PER_PIXEL, DECODE_BYTES_PER_PIXEL = 3300, 8000
MEASURED_CHANNELS, MEASURED_DECODER_CHANNELS = 160, 256
OPAQUE = 1.0  # the opacity of images that come without one
MAPS_AT_ONCE = 10  # feature maps of an image's size that are held at once, in channels of the largest level

MARK = "decoder.upsamples.0.upsamples.0.residual.2.weight"


@dataclass(frozen=True, slots=True)
class Wan22VaeConfig:
    """Configuration of the network. `level_factors`: channels per level by the base channels, largest image first.

    Every level but the last halves the image; where `halves_time` says so, the number of frames too. Images of
    `image_channels` are taken apart into patches of `patch` pixels a side. Convolutions see `time_kernel` frames.
    """

    base_channels: int = 160
    decoder_channels: int = 256
    latent_channels: int = 48
    level_factors: tuple[int, ...] = (1, 2, 4, 4)
    blocks_per_level: int = 2
    halves_time: tuple[bool, ...] = (False, True, True)
    image_channels: int = 3
    patch: int = 2
    time_kernel: int = KERNEL

    @property
    def patch_channels(self) -> int:
        return self.image_channels * self.patch**2


def wan22_vae_config(shapes: Shapes) -> Wan22VaeConfig:
    """Return the configuration of the network with these tensors (names without prefix)."""
    return Wan22VaeConfig(
        base_channels=shapes["encoder.conv1.weight"][0],
        decoder_channels=shapes["decoder.head.0.gamma"][0],
        latent_channels=shapes["conv2.weight"][0],
    )


def _means(x: torch.Tensor, channels: int, frames: int, sides: int) -> torch.Tensor:
    """Return the means [B, channels, F / frames, h / sides, w / sides] of groups of cells and channels."""
    x = functional.pad(x, (0, 0, 0, 0, -x.shape[2] % frames, 0))
    batch, given, length, height, width = x.shape
    parts = x.reshape(batch, given, length // frames, frames, height // sides, sides, width // sides, sides)
    folded = parts.permute(0, 1, 3, 5, 7, 2, 4, 6)
    return folded.reshape(batch, channels, -1, *folded.shape[-3:]).mean(dim=2)


def _repeats(x: torch.Tensor, channels: int, frames: int, sides: int, *, is_first: bool) -> torch.Tensor:
    """Return channels spread over more cells [B, channels, F * frames, h * sides, w * sides].

    Of a video's first frame there is one.
    """
    batch, given, length, height, width = x.shape
    x = x.repeat_interleave(channels * frames * sides**2 // given, dim=1)
    parts = x.view(batch, channels, frames, sides, sides, length, height, width).permute(0, 1, 5, 2, 6, 3, 7, 4)
    spread = parts.reshape(batch, channels, length * frames, height * sides, width * sides)
    return spread[:, :, frames - 1 :] if is_first else spread


class DownLevel(nn.Module):
    """Blocks and a change of size, beside the means of what enters."""

    def __init__(
        self, in_channels: int, channels: int, num_blocks: int, *, halves: bool, halves_time: bool, time_kernel: int
    ) -> None:
        super().__init__()
        self.channels, self.frames, self.sides = channels, 2 if halves_time else 1, 2 if halves else 1
        widths = [in_channels, *[channels] * (num_blocks - 1)]
        blocks: list[nn.Module] = [ResidualBlock(width, channels, time_kernel=time_kernel) for width in widths]
        if halves:
            blocks.append(Downsample(channels, halves_time=halves_time, time_kernel=time_kernel))
        self.downsamples = nn.ModuleList(blocks)

    def forward(self, x: torch.Tensor, memory: FrameMemory) -> torch.Tensor:
        means = _means(x, self.channels, self.frames, self.sides)
        for block in self.downsamples:
            x = block(x, memory)
        return x + means


class UpLevel(nn.Module):
    """Blocks and a change of size, beside repeats of what enters; the last level has neither."""

    def __init__(
        self, in_channels: int, channels: int, num_blocks: int, *, doubles: bool, doubles_time: bool, time_kernel: int
    ) -> None:
        super().__init__()
        self.channels, self.frames, self.doubles = channels, 2 if doubles_time else 1, doubles
        widths = [in_channels, *[channels] * (num_blocks - 1)]
        blocks: list[nn.Module] = [ResidualBlock(width, channels, time_kernel=time_kernel) for width in widths]
        if doubles:
            blocks.append(Upsample(channels, doubles_time=doubles_time, out_channels=channels, time_kernel=time_kernel))
        self.upsamples = nn.ModuleList(blocks)

    def forward(self, x: torch.Tensor, memory: FrameMemory) -> torch.Tensor:
        is_first = memory.of(self) is None
        memory.keep(self, x[:, :, :0])
        entered = x
        for block in self.upsamples:
            x = block(x, memory)
        return x + _repeats(entered, self.channels, self.frames, 2, is_first=is_first) if self.doubles else x


class Encoder(Stack):
    """`forward([B, 12, f, H/2, W/2], memory)` -> moments `[B, 2 * C, 1, h, w]`: of one frame first, then of four."""

    def __init__(self, config: Wan22VaeConfig) -> None:
        widths = [config.base_channels * factor for factor in (1, *config.level_factors)]
        super().__init__(
            config.patch_channels,
            widths[0],
            widths[-1],
            config.latent_channels * 2,
            middle=widths[-1],
            time_kernel=config.time_kernel,
        )
        halves_time = (*config.halves_time, False)
        self.downsamples = nn.ModuleList(
            DownLevel(
                before, channels, config.blocks_per_level,
                halves=level < len(config.halves_time), halves_time=halves_time[level], time_kernel=config.time_kernel,
            )
            for level, (before, channels) in enumerate(pairwise(widths))
        )  # fmt: skip

    def forward(self, x: torch.Tensor, memory: FrameMemory) -> torch.Tensor:
        x = self.conv1(x, memory)
        for block in (*self.downsamples, *self.middle):
            x = block(x, memory)
        return self.ended(x, memory)


class Decoder(Stack):
    """`forward([B, C, 1, h, w], memory)` -> patches `[B, 12, f, H / 2, W / 2]`: of one frame first, then of four."""

    def __init__(self, config: Wan22VaeConfig) -> None:
        factors = (config.level_factors[-1], *reversed(config.level_factors))
        widths = [config.decoder_channels * factor for factor in factors]
        super().__init__(
            config.latent_channels,
            widths[0],
            widths[-1],
            config.patch_channels,
            middle=widths[0],
            time_kernel=config.time_kernel,
        )
        doubles_time = (*reversed(config.halves_time), False)
        self.upsamples = nn.ModuleList(
            UpLevel(
                before, channels, config.blocks_per_level + 1,
                doubles=level < len(config.halves_time), doubles_time=doubles_time[level],
                time_kernel=config.time_kernel,
            )
            for level, (before, channels) in enumerate(pairwise(widths))
        )  # fmt: skip

    def forward(self, x: torch.Tensor, memory: FrameMemory) -> torch.Tensor:
        x = self.conv1(x, memory)
        for block in (*self.middle, *self.upsamples):
            x = block(x, memory)
        return self.ended(x, memory)


class Wan22Vae(CausalVae):
    """The autoencoder, which takes patches of pixels."""

    def __init__(self, config: Wan22VaeConfig) -> None:
        super().__init__(
            Encoder(config), Decoder(config),
            latent_channels=config.latent_channels, downscale_ratio=2 ** len(config.halves_time) * config.patch,
        )  # fmt: skip
        self.config = config
        self.patch = (1, config.patch, config.patch)

    @property
    def encode_bytes_per_pixel(self) -> int:
        """Bytes of working memory per pixel of a frame and byte of the dtype, for encoding."""
        return ENCODE_BYTES_PER_PIXEL * self.config.base_channels // MEASURED_CHANNELS

    @property
    def decode_bytes_per_cell(self) -> int:
        """Bytes of working memory per latent cell of a frame and byte of the dtype, for decoding."""
        cell_px: int = self.downscale_ratio**2
        return DECODE_BYTES_PER_PIXEL * cell_px * self.config.decoder_channels // MEASURED_DECODER_CHANNELS

    def to_encoder(self, videos: torch.Tensor) -> torch.Tensor:
        return patched(videos, self.patch)

    def from_decoder(self, frames: torch.Tensor) -> torch.Tensor:
        return unpatched(frames, self.patch)


class OpacityVae(Wan22Vae):
    """The autoencoder of single images with opacity: [B, 4, H, W] -> [B, C, h, w]."""

    latent_dim = 2

    @property
    def output_channels(self) -> int:
        """Channels of images: red, green, blue and opacity."""
        return self.config.image_channels

    @property
    def encode_bytes_per_pixel(self) -> int:
        """Bytes of working memory per pixel and byte of the dtype, for encoding: ten times a full-size feature map."""
        return MAPS_AT_ONCE * self.config.base_channels

    @property
    def decode_bytes_per_cell(self) -> int:
        """Bytes of working memory per latent cell and byte of the dtype, for decoding."""
        cell_px: int = self.downscale_ratio**2
        return MAPS_AT_ONCE * self.config.decoder_channels * cell_px

    def encode(self, videos: torch.Tensor) -> torch.Tensor:
        """Return the mean of the posterior [B, C, h, w] of images [B, 3 or 4, H, W]; three channels are opaque."""
        missing = self.config.image_channels - videos.shape[1]
        images = functional.pad(videos, (0, 0, 0, 0, 0, missing), value=OPAQUE)
        return super().encode(images.unsqueeze(2)).squeeze(2)

    def decode(self, latents: torch.Tensor) -> torch.Tensor:
        """Return images [B, 4, H, W] of latents [B, C, h, w]."""
        return super().decode(latents.unsqueeze(2)).squeeze(2)
