"""The 3-D autoencoder of HunyuanVideo (Kong et al. 2024, arXiv 2412.03603, section 4.1), of any width.

Videos `[B, 3, F, H, W]` in -1..1 of 1 + 4n frames, latents `[B, C, 1 + n, H/8, W/8]` unscaled; an image is a video of
one frame. A video passes through the levels in pieces, as in ComfyUI since 2026: norms see the frames of a piece, the
convolutions also those before it. The middle alone, whose attention is over all cells, has the whole video. Names of
modules are those that ComfyUI gives the checkpoints.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional
from torch.nn.functional import scaled_dot_product_attention

from darkroom.engine.layers.frame_memory import FrameMemory

# Bytes of working memory per pixel of a piece's frames and byte of the dtype, of the 128-channel network (ComfyUI's).
ENCODE_BYTES_PER_PIXEL, DECODE_BYTES_PER_PIXEL = 1400, 2800
MEASURED_CHANNELS = 128
FRAMES_RATIO = 4
FRAMES_BEFORE = 2  # that a convolution of three frames looks back
LATENT_FRAMES_AT_ONCE = 2
FRAMES_AT_ONCE = LATENT_FRAMES_AT_ONCE * FRAMES_RATIO
NUM_TIME_LEVELS = 2  # the smallest ones, each of which halves the number of frames


def pieces_of(videos: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return the pieces of videos [B, 3, F, H, W] that encoders take: one frame, then eight; four at the end at least.

    Frames beyond 1 + 4n are left out.
    """
    num_frames = 1 + (videos.shape[2] - 1) // FRAMES_RATIO * FRAMES_RATIO
    if num_frames == 1:
        return (videos[:, :, :1],)
    ends = [1, *range(1 + FRAMES_AT_ONCE, num_frames, FRAMES_AT_ONCE)]
    return torch.tensor_split(videos[:, :, :num_frames], ends, dim=2)


@dataclass(frozen=True, slots=True)
class HunyuanVideoVaeConfig:
    """Configuration of the network. `level_channels`: largest image first; every level but the last halves it."""

    level_channels: tuple[int, ...]
    latent_channels: int = 16
    blocks_per_level: int = 2
    image_channels: int = 3

    @property
    def num_levels(self) -> int:
        """Number of levels that halve the image."""
        return len(self.level_channels) - 1


class RepeatedEdgeConv3d(nn.Module):
    """A convolution of each frame with those before it. Edges and the first frame are repeated outside."""

    def __init__(
        self, in_channels: int, out_channels: int, kernel: int = 3, *, stride: tuple[int, int, int] = (1, 1, 1)
    ) -> None:
        super().__init__()
        self.is_point = kernel == 1
        self.conv = nn.Conv3d(in_channels, out_channels, kernel, stride=stride)

    def forward(self, x: torch.Tensor, memory: FrameMemory | None = None) -> torch.Tensor:
        """Return frames [B, C, F, h, w]. A layer without `memory` has a whole video, or starts one."""
        if self.is_point:
            flat: torch.Tensor = self.conv(x)
            return flat
        before = None if memory is None else memory.of(self)
        padded = functional.pad(x, (1, 1, 1, 1, FRAMES_BEFORE if before is None else 0, 0), mode="replicate")
        if before is not None:
            padded = torch.cat([before, padded], dim=2)
        if memory is not None:
            memory.keep(self, padded[:, :, -FRAMES_BEFORE:])
        out: torch.Tensor = self.conv(padded)
        return out


class VideoResnetBlock(nn.Module):
    def __init__(self, in_channels: int, channels: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = (nn.GroupNorm(32, width, eps=1e-6) for width in (in_channels, channels))
        self.conv1, self.conv2 = RepeatedEdgeConv3d(in_channels, channels), RepeatedEdgeConv3d(channels, channels)
        changes_width = in_channels != channels
        self.nin_shortcut = RepeatedEdgeConv3d(in_channels, channels, 1) if changes_width else nn.Identity()

    def forward(self, x: torch.Tensor, memory: FrameMemory | None = None) -> torch.Tensor:
        h = self.conv1(functional.silu(self.norm1(x)), memory)
        h = self.conv2(functional.silu(self.norm2(h)), memory)
        out: torch.Tensor = self.nin_shortcut(x) + h
        return out


class FramesAttention(nn.Module):
    """Self-attention of all cells of all frames with one head."""

    def __init__(self, channels: int, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm
        self.q, self.k, self.v = (nn.Conv3d(channels, channels, 1) for _ in range(3))
        self.proj_out = nn.Conv3d(channels, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed = self.norm(x)
        q, k, v = (
            layer(normed).flatten(2)[:, None].transpose(2, 3).contiguous() for layer in (self.q, self.k, self.v)
        )  # [B, 1, cells, C]
        out = scaled_dot_product_attention(q, k, v).transpose(2, 3).reshape(x.shape)
        attended: torch.Tensor = self.proj_out(out)
        return x + attended


class VideoMiddle(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.block_1, self.block_2 = (VideoResnetBlock(channels, channels) for _ in range(2))
        self.attn_1 = FramesAttention(channels, nn.GroupNorm(32, channels, eps=1e-6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.block_2(self.attn_1(self.block_1(x)))
        return out


class VideoDownsample(nn.Module):
    def __init__(self, channels: int, *, halves_time: bool) -> None:
        super().__init__()
        self.conv = RepeatedEdgeConv3d(channels, channels, stride=(2 if halves_time else 1, 2, 2))

    def forward(self, x: torch.Tensor, memory: FrameMemory) -> torch.Tensor:
        out: torch.Tensor = self.conv(x, memory)
        return out


class VideoUpsample(nn.Module):
    """Twice as many cells along each side, and with `doubles_time` twice as many frames behind a video's first one."""

    def __init__(self, channels: int, *, doubles_time: bool) -> None:
        super().__init__()
        self.doubles_time = doubles_time
        self.conv = RepeatedEdgeConv3d(channels, channels)

    def forward(self, x: torch.Tensor, memory: FrameMemory) -> torch.Tensor:
        num_single = 1 if memory.of(self.conv) is None else 0
        first, others = x[:, :, :num_single], x[:, :, num_single:]
        frames = 2.0 if self.doubles_time else 1.0
        parts = [
            functional.interpolate(part, scale_factor=(ratio, 2.0, 2.0), mode="nearest")
            for part, ratio in ((first, 1.0), (others, frames))
            if part.shape[2]
        ]
        out: torch.Tensor = self.conv(torch.cat(parts, dim=2), memory)
        return out


class VideoLevel(nn.Module):
    """Blocks at one size, followed by a change of size where there is a next level."""

    def __init__(self, in_channels: int, channels: int, num_blocks: int) -> None:
        super().__init__()
        widths = [in_channels, *[channels] * (num_blocks - 1)]
        self.block = nn.ModuleList(VideoResnetBlock(width, channels) for width in widths)
        self.resize: str | None = None

    def followed_by(self, name: str, layer: nn.Module) -> VideoLevel:
        """Give the level its change of size, under the name that files have for it."""
        self.resize = name
        self.add_module(name, layer)
        return self

    def forward(self, x: torch.Tensor, memory: FrameMemory) -> torch.Tensor:
        for block in self.block:
            x = block(x, memory)
        return x if self.resize is None else self.get_submodule(self.resize)(x, memory)


class HunyuanVideoEncoder(nn.Module):
    def __init__(self, config: HunyuanVideoVaeConfig) -> None:
        super().__init__()
        levels, last = config.level_channels, config.level_channels[-1]
        self.conv_in = RepeatedEdgeConv3d(config.image_channels, levels[0])
        self.down = nn.ModuleList()
        for level, channels in enumerate(levels):
            made = VideoLevel(levels[max(0, level - 1)], channels, config.blocks_per_level)
            if level < config.num_levels:
                halves_time = level >= config.num_levels - NUM_TIME_LEVELS
                made.followed_by("downsample", VideoDownsample(channels, halves_time=halves_time))
            self.down.append(made)
        self.mid = VideoMiddle(last)
        self.norm_out = nn.GroupNorm(32, last, eps=1e-6)
        self.conv_out = RepeatedEdgeConv3d(last, config.latent_channels * 2)

    def forward(self, videos: torch.Tensor) -> torch.Tensor:
        """Return the moments [B, 2C, 1 + n, h, w] of videos [B, 3, F, H, W]; frames beyond 1 + 4n are left out."""
        memory = FrameMemory()
        x = torch.cat([self._levels(piece, memory) for piece in pieces_of(videos)], dim=2)
        out: torch.Tensor = self.conv_out(functional.silu(self.norm_out(self.mid(x))))
        return out

    def _levels(self, piece: torch.Tensor, memory: FrameMemory) -> torch.Tensor:
        piece = self.conv_in(piece, memory)
        for level in self.down:
            piece = level(piece, memory)
        return piece


class HunyuanVideoDecoder(nn.Module):
    def __init__(self, config: HunyuanVideoVaeConfig) -> None:
        super().__init__()
        levels = config.level_channels
        self.conv_in = RepeatedEdgeConv3d(config.latent_channels, levels[-1])
        self.mid = VideoMiddle(levels[-1])
        self.up = nn.ModuleList()  # level 0 is the full image and comes last; the list keeps the files' numbers
        for level, channels in enumerate(levels):
            made = VideoLevel(levels[min(level + 1, config.num_levels)], channels, config.blocks_per_level + 1)
            if level > 0:
                made.followed_by("upsample", VideoUpsample(channels, doubles_time=level <= NUM_TIME_LEVELS))
            self.up.append(made)
        self.norm_out = nn.GroupNorm(32, levels[0], eps=1e-6)
        self.conv_out = RepeatedEdgeConv3d(levels[0], config.image_channels)

    def pieces(self, latents: torch.Tensor) -> Iterator[torch.Tensor]:
        """Yield the frames of latents [B, C, f, h, w] in order: [B, 3, 5, H, W], then [B, 3, 8 or 4, H, W] each."""
        memory = FrameMemory()
        for piece in torch.split(self.mid(self.conv_in(latents)), LATENT_FRAMES_AT_ONCE, dim=2):
            x = piece
            for level in reversed(self.up):
                x = level(x, memory)
            yield self.conv_out(functional.silu(self.norm_out(x)), memory)


class HunyuanVideoVae(nn.Module):
    """The autoencoder. `frames_ratio` frames of a video, behind its first one, become one latent frame."""

    latent_dim = 3
    frames_ratio = FRAMES_RATIO
    frames_decoded_at_once = FRAMES_AT_ONCE

    def __init__(self, config: HunyuanVideoVaeConfig) -> None:
        super().__init__()
        self.config = config
        self.latent_channels = config.latent_channels
        self.downscale_ratio = 2**config.num_levels
        moments = config.latent_channels * 2
        self.encoder, self.decoder = HunyuanVideoEncoder(config), HunyuanVideoDecoder(config)
        self.quant_conv = nn.Conv3d(moments, moments, 1)
        self.post_quant_conv = nn.Conv3d(config.latent_channels, config.latent_channels, 1)

    @property
    def encode_bytes_per_pixel(self) -> int:
        """Bytes of working memory per pixel of a frame and byte of the dtype, for encoding."""
        return (1 + FRAMES_AT_ONCE) * ENCODE_BYTES_PER_PIXEL * self.config.level_channels[0] // MEASURED_CHANNELS

    @property
    def decode_bytes_per_cell(self) -> int:
        """Bytes of working memory per latent cell of a frame and byte of the dtype, for decoding."""
        cell_px: int = self.downscale_ratio**2
        return DECODE_BYTES_PER_PIXEL * cell_px * self.config.level_channels[0] // MEASURED_CHANNELS

    def encode(self, videos: torch.Tensor) -> torch.Tensor:
        """Return the mean of the posterior [B, C, 1 + n, h, w]."""
        moments: torch.Tensor = self.quant_conv(self.encoder(videos))
        return moments.chunk(2, dim=1)[0]

    def decode(self, latents: torch.Tensor) -> torch.Tensor:
        """Return the frames [B, 3, 1 + 4n, H, W] of latents [B, C, 1 + n, h, w]."""
        return torch.cat([*self.decoded_pieces(latents)], dim=2)

    def decoded_pieces(self, latents: torch.Tensor) -> Iterator[torch.Tensor]:
        """Yield the frames of latents [B, C, 1 + n, h, w] in order: those of two latent frames at a time."""
        yield from self.decoder.pieces(self.post_quant_conv(latents))
