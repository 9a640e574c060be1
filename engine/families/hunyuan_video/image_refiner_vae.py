"""The autoencoder of HunyuanImage 2.1's refiner and HunyuanVideo 1.5, of any width and depth: cells of 16 pixels.

Videos `[B, 3, F, H, W]` in -1..1 of 1 + 4n frames, latents `[B, C, 1 + n, H/16, W/16]` unscaled; an image is a video of
one frame. A change of size moves cells and frames into channels, or channels into them, beside a convolution (its
shortcuts: Chen et al. 2024, arXiv 2410.10733). No layer but attention sees later frames: a video passes through the
levels in pieces, and the middle alone has all of its latent frames. Module names are those of the original checkpoints.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.families.hunyuan_video.image_vae import grouped_means
from darkroom.engine.families.hunyuan_video.vae import (
    FRAMES_AT_ONCE,
    FRAMES_RATIO,
    LATENT_FRAMES_AT_ONCE,
    MEASURED_CHANNELS,
    NUM_TIME_LEVELS,
    FramesAttention,
    RepeatedEdgeConv3d,
    pieces_of,
)
from darkroom.engine.layers.frame_memory import FrameMemory
from darkroom.engine.layers.norms import ChannelNorm

# Numbers in work for each pixel of a frame, of the 128-channel network (ComfyUI's).
ENCODE_VALUES, DECODE_VALUES = 1400, 3600
MIDDLE_TENSORS = 8  # of the size of its input


@dataclass(frozen=True, slots=True)
class HunyuanImageRefinerVaeConfig:
    """Configuration of the network. `level_channels`: largest image first; every level but the last halves it."""

    level_channels: tuple[int, ...]
    latent_channels: int = 32
    blocks_per_level: int = 2
    image_channels: int = 3

    @property
    def num_levels(self) -> int:
        """Number of levels that halve the image."""
        return len(self.level_channels) - 1


class FramesBlock(nn.Module):
    """Two convolutions beside a shortcut, which is a convolution of a point where the number of channels changes."""

    def __init__(self, in_channels: int, channels: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = (ChannelNorm(size, num_places=3) for size in (in_channels, channels))
        self.conv1, self.conv2 = RepeatedEdgeConv3d(in_channels, channels), RepeatedEdgeConv3d(channels, channels)
        changes = in_channels != channels
        self.nin_shortcut = RepeatedEdgeConv3d(in_channels, channels, 1) if changes else nn.Identity()

    def forward(self, x: torch.Tensor, memory: FrameMemory | None = None) -> torch.Tensor:
        h = self.conv1(functional.silu(self.norm1(x)), memory)
        out: torch.Tensor = self.nin_shortcut(x) + self.conv2(functional.silu(self.norm2(h)), memory)
        return out


class FramesMiddle(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.block_1, self.block_2 = (FramesBlock(channels, channels) for _ in range(2))
        self.attn_1 = FramesAttention(channels, ChannelNorm(channels, num_places=3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.block_2(self.attn_1(self.block_1(x)))
        return out


def frames_in_channels(x: torch.Tensor, frames: int) -> torch.Tensor:
    """Return cells [B, C, F, H, W] as channels [B, 4 * frames * C, F / frames, H/2, W/2]."""
    batch, channels, count, height, width = x.shape
    split = x.reshape(batch, channels, count // frames, frames, height // 2, 2, width // 2, 2)
    moved = split.permute(0, 3, 5, 7, 1, 2, 4, 6)
    return moved.reshape(batch, frames * 4 * channels, count // frames, height // 2, width // 2)


def channels_in_frames(x: torch.Tensor, frames: int) -> torch.Tensor:
    """Return channels [B, 4 * frames * C, F, h, w] as cells [B, C, F * frames, 2 * h, 2 * w]."""
    batch, channels, count, height, width = x.shape
    own = channels // (4 * frames)
    split = x.reshape(batch, frames, 2, 2, own, count, height, width)
    moved = split.permute(0, 4, 5, 1, 6, 2, 7, 3)
    return moved.reshape(batch, own, count * frames, height * 2, width * 2)


class FramesDown(nn.Module):
    """Half as many cells along each side, and with `halves_time` half as many frames behind the first one."""

    def __init__(self, in_channels: int, channels: int, *, halves_time: bool) -> None:
        super().__init__()
        self.channels, self.halves_time = channels, halves_time
        self.conv = RepeatedEdgeConv3d(in_channels, channels // (8 if halves_time else 4))

    def forward(self, x: torch.Tensor, memory: FrameMemory) -> torch.Tensor:
        begins = memory.of(self.conv) is None
        h = self.conv(x, memory)
        if not self.halves_time:
            return self._shuffled(h, x, 1)
        if not begins:
            return self._shuffled(h, x, 2)
        first = frames_in_channels(h[:, :, :1], 1)
        first = torch.cat([first, first], dim=1)
        first = first + grouped_means(frames_in_channels(x[:, :, :1], 1), self.channels)
        if x.shape[2] == 1:
            return first
        return torch.cat([first, self._shuffled(h[:, :, 1:], x[:, :, 1:], 2)], dim=2)

    def _shuffled(self, h: torch.Tensor, x: torch.Tensor, frames: int) -> torch.Tensor:
        return frames_in_channels(h, frames) + grouped_means(frames_in_channels(x, frames), self.channels)


class FramesUp(nn.Module):
    """Twice as many cells along each side, and with `doubles_time` twice as many frames behind the first one."""

    def __init__(self, in_channels: int, channels: int, *, doubles_time: bool) -> None:
        super().__init__()
        self.frames = 2 if doubles_time else 1
        made = channels * 4 * self.frames
        self.repeats = made // in_channels
        self.conv = RepeatedEdgeConv3d(in_channels, made)

    def forward(self, x: torch.Tensor, memory: FrameMemory) -> torch.Tensor:
        begins = memory.of(self.conv) is None
        h = self.conv(x, memory)
        if self.frames == 1 or not begins:
            return self._shuffled(h, x)
        own = channels_in_frames(h[:, :, :1], 1)
        first = own[:, : own.shape[1] // 2]
        first = first + channels_in_frames(x[:, :, :1].repeat_interleave(self.repeats // 2, dim=1), 1)
        if x.shape[2] == 1:
            return first
        return torch.cat([first, self._shuffled(h[:, :, 1:], x[:, :, 1:])], dim=2)

    def _shuffled(self, h: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        repeated = x.repeat_interleave(self.repeats, dim=1)
        return channels_in_frames(h, self.frames) + channels_in_frames(repeated, self.frames)


class FramesLevel(nn.Module):
    """Blocks at one size, followed by a change of size where there is a next level."""

    def __init__(
        self, channels: int, num_blocks: int, *, down: nn.Module | None = None, up: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.block = nn.ModuleList(FramesBlock(channels, channels) for _ in range(num_blocks))
        if down is not None:
            self.downsample = down
        if up is not None:
            self.upsample = up
        self.resize = "downsample" if down is not None else "upsample" if up is not None else None

    def forward(self, x: torch.Tensor, memory: FrameMemory) -> torch.Tensor:
        for block in self.block:
            x = block(x, memory)
        return x if self.resize is None else self.get_submodule(self.resize)(x, memory)


class FramesEncoder(nn.Module):
    """`forward([B, 3, F, H, W])` -> the moments of the posterior [B, 2 * C, 1 + n, h, w]."""

    def __init__(self, config: HunyuanImageRefinerVaeConfig) -> None:
        super().__init__()
        levels, last = config.level_channels, config.level_channels[-1]
        first_in_time = config.num_levels - NUM_TIME_LEVELS
        self.conv_in = RepeatedEdgeConv3d(config.image_channels, levels[0])
        self.down = nn.ModuleList(
            FramesLevel(
                channels,
                config.blocks_per_level,
                down=FramesDown(channels, levels[level + 1], halves_time=level >= first_in_time)
                if level < config.num_levels
                else None,
            )
            for level, channels in enumerate(levels)
        )
        self.mid = FramesMiddle(last)
        self.norm_out = ChannelNorm(last, num_places=3)
        self.conv_out = RepeatedEdgeConv3d(last, config.latent_channels * 2)

    def forward(self, videos: torch.Tensor) -> torch.Tensor:
        memory = FrameMemory()
        x = self.mid(torch.cat([self._levels(piece, memory) for piece in pieces_of(videos)], dim=2))
        out: torch.Tensor = self.conv_out(functional.silu(self.norm_out(x)))
        return out + grouped_means(x, out.shape[1])

    def _levels(self, piece: torch.Tensor, memory: FrameMemory) -> torch.Tensor:
        piece = self.conv_in(piece, memory)
        for level in self.down:
            piece = level(piece, memory)
        return piece


class FramesDecoder(nn.Module):
    def __init__(self, config: HunyuanImageRefinerVaeConfig) -> None:
        super().__init__()
        levels = config.level_channels[::-1]
        self.repeats = levels[0] // config.latent_channels
        self.conv_in = RepeatedEdgeConv3d(config.latent_channels, levels[0])
        self.mid = FramesMiddle(levels[0])
        self.up = nn.ModuleList(
            FramesLevel(
                channels,
                config.blocks_per_level + 1,
                up=FramesUp(channels, levels[level + 1], doubles_time=level < NUM_TIME_LEVELS)
                if level < config.num_levels
                else None,
            )
            for level, channels in enumerate(levels)
        )
        self.norm_out = ChannelNorm(levels[-1], num_places=3)
        self.conv_out = RepeatedEdgeConv3d(levels[-1], config.image_channels)

    def pieces(self, latents: torch.Tensor) -> Iterator[torch.Tensor]:
        """Yield the frames of latents [B, C, f, h, w] in order: [B, 3, 5, H, W], then [B, 3, 8 or 4, H, W] each."""
        memory = FrameMemory()
        x = self.mid(self.conv_in(latents) + latents.repeat_interleave(self.repeats, dim=1))
        for piece in torch.split(x, LATENT_FRAMES_AT_ONCE, dim=2):
            for level in self.up:
                piece = level(piece, memory)
            yield self.conv_out(functional.silu(self.norm_out(piece)), memory)


class HunyuanImageRefinerVae(nn.Module):
    """The autoencoder. `frames_ratio` frames of a video, behind its first one, become one latent frame."""

    latent_dim = 3
    frames_ratio = FRAMES_RATIO

    def __init__(self, config: HunyuanImageRefinerVaeConfig) -> None:
        super().__init__()
        self.config = config
        self.latent_channels = config.latent_channels
        self.downscale_ratio = 2**config.num_levels
        self.encoder, self.decoder = FramesEncoder(config), FramesDecoder(config)

    def encode_bytes(self, shape: tuple[int, ...]) -> int:
        """Return the working memory for encoding one video of the shape [B, 3, F, H, W], for a byte of the dtype."""
        *_, frames, height, width = shape
        levels = min(frames, FRAMES_AT_ONCE) * ENCODE_VALUES * self.config.level_channels[0] // MEASURED_CHANNELS
        middle = self._middle_values() * (1 + frames // FRAMES_RATIO) // self._cell_px
        return height * width * (levels + frames * self.config.image_channels + middle)

    def decode_bytes(self, shape: tuple[int, ...]) -> int:
        """Return the working memory for decoding one latent of the shape [B, C, f, h, w], for a byte of the dtype."""
        *_, latent_frames, rows, columns = shape
        frames = 1 if latent_frames == 1 else FRAMES_RATIO
        levels = frames * DECODE_VALUES * self.config.level_channels[0] // MEASURED_CHANNELS
        return rows * columns * (levels * self._cell_px + self._middle_values() * latent_frames)

    @property
    def _cell_px(self) -> int:
        """Pixels of a latent cell."""
        pixels: int = self.downscale_ratio**2
        return pixels

    def _middle_values(self) -> int:
        """Return the numbers in work for each cell of a latent frame in the middle, which has all frames."""
        return MIDDLE_TENSORS * self.config.level_channels[-1]

    def encode(self, videos: torch.Tensor) -> torch.Tensor:
        """Return the mean of the posterior [B, C, 1 + n, h, w]. Frames beyond 1 + 4n are left out."""
        moments: torch.Tensor = self.encoder(videos)
        return moments.chunk(2, dim=1)[0]

    def decode(self, latents: torch.Tensor) -> torch.Tensor:
        """Return the frames [B, 3, 1 + 4n, H, W] of latents [B, C, 1 + n, h, w]."""
        return torch.cat([*self.decoded_pieces(latents)], dim=2)

    def decoded_pieces(self, latents: torch.Tensor) -> Iterator[torch.Tensor]:
        """Yield the frames of latents [B, C, 1 + n, h, w] in order: those of two latent frames at a time."""
        yield from self.decoder.pieces(latents)
