"""The autoencoder of HunyuanImage 2.1's refiner, of any width and depth: cells of 16 pixels, four frames become one.

Images `[B, 3, F, H, W]` in -1..1, one frame or 1 + 4n; latents `[B, 2 * C, f, H/16, W/16]` unscaled, each of two
frames of `C` channels, the first of which stands twice. A change of size moves cells and frames into channels, or
channels into them, beside a convolution (its shortcuts: Chen et al. 2024, arXiv 2410.10733). No layer but attention
sees later frames. Module names are those of the original checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional
from torch.nn.functional import scaled_dot_product_attention

from darkroom.engine.families.hunyuan_video.image_vae import grouped_means
from darkroom.engine.layers.norms import ChannelNorm

# Bytes of working memory per pixel of a frame and byte of the dtype, of the 128-channel network (ComfyUI's).
BYTES_PER_PIXEL = 1400
MEASURED_CHANNELS = 128
FRAMES_BEFORE = 2  # that a convolution of three frames looks back
FRAMES_RATIO = 4  # frames of one latent frame
NUM_TIME_LEVELS = 2  # each of which halves the number of frames
Shuffle = Callable[[torch.Tensor, int], torch.Tensor]


@dataclass(frozen=True, slots=True)
class HunyuanImageRefinerVaeConfig:
    """Configuration of the network. `level_channels`: largest image first; every level but the last halves it.

    `frame_channels` is the number of channels of a frame, half of a latent's.
    """

    level_channels: tuple[int, ...]
    frame_channels: int = 32
    blocks_per_level: int = 2
    image_channels: int = 3

    @property
    def num_levels(self) -> int:
        """Number of levels that halve the image."""
        return len(self.level_channels) - 1


class EdgeConv3d(nn.Module):
    """A convolution of each frame with the two before it. Edges and the first frame are repeated outside."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv3d(in_channels, out_channels, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.conv(functional.pad(x, (1, 1, 1, 1, FRAMES_BEFORE, 0), mode="replicate"))
        return out


class FramesBlock(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = (ChannelNorm(channels, num_places=3) for _ in range(2))
        self.conv1, self.conv2 = (EdgeConv3d(channels, channels) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.conv1(functional.silu(self.norm1(x)))
        out: torch.Tensor = x + self.conv2(functional.silu(self.norm2(h)))
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


class FramesMiddle(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.block_1, self.block_2 = (FramesBlock(channels) for _ in range(2))
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
        self.conv = EdgeConv3d(in_channels, channels // (8 if halves_time else 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.conv(x)
        if not self.halves_time:
            return frames_in_channels(h, 1) + grouped_means(frames_in_channels(x, 1), self.channels)
        first = frames_in_channels(h[:, :, :1], 1)
        first = torch.cat([first, first], dim=1)
        first = first + grouped_means(frames_in_channels(x[:, :, :1], 1), self.channels)
        if x.shape[2] == 1:
            return first
        others = frames_in_channels(h[:, :, 1:], 2) + grouped_means(frames_in_channels(x[:, :, 1:], 2), self.channels)
        return torch.cat([first, others], dim=2)


class FramesUp(nn.Module):
    """Twice as many cells along each side, and with `doubles_time` twice as many frames behind the first one."""

    def __init__(self, in_channels: int, channels: int, *, doubles_time: bool) -> None:
        super().__init__()
        self.doubles_time = doubles_time
        self.frames = 2 if doubles_time else 1
        made = channels * 4 * self.frames
        self.repeats = made // in_channels
        self.conv = EdgeConv3d(in_channels, made)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.conv(x)
        if not self.doubles_time:
            return self._shuffled(h, x, 1, self.repeats)
        own = channels_in_frames(h[:, :, :1], 1)
        first = own[:, : own.shape[1] // 2]
        first = first + channels_in_frames(x[:, :, :1].repeat_interleave(self.repeats // 2, dim=1), 1)
        if x.shape[2] == 1:
            return first
        return torch.cat([first, self._shuffled(h[:, :, 1:], x[:, :, 1:], 2, self.repeats)], dim=2)

    @staticmethod
    def _shuffled(h: torch.Tensor, x: torch.Tensor, frames: int, repeats: int) -> torch.Tensor:
        return channels_in_frames(h, frames) + channels_in_frames(x.repeat_interleave(repeats, dim=1), frames)


class FramesLevel(nn.Module):
    """Blocks at one size, followed by a change of size where there is a next level."""

    def __init__(
        self, channels: int, num_blocks: int, *, down: nn.Module | None = None, up: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.block = nn.ModuleList(FramesBlock(channels) for _ in range(num_blocks))
        if down is not None:
            self.downsample = down
        if up is not None:
            self.upsample = up
        self.resize = "downsample" if down is not None else "upsample" if up is not None else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.block:
            x = block(x)
        return x if self.resize is None else self.get_submodule(self.resize)(x)


class FramesEncoder(nn.Module):
    """`forward([B, 3, F, H, W])` -> the moments of the posterior of each frame [B, 2 * C, f, h, w]."""

    def __init__(self, config: HunyuanImageRefinerVaeConfig) -> None:
        super().__init__()
        levels, last = config.level_channels, config.level_channels[-1]
        first_in_time = config.num_levels - NUM_TIME_LEVELS
        self.conv_in = EdgeConv3d(config.image_channels, levels[0])
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
        self.conv_out = EdgeConv3d(last, config.frame_channels * 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv_in(x)
        for level in self.down:
            x = level(x)
        x = self.mid(x)
        out: torch.Tensor = self.conv_out(functional.silu(self.norm_out(x)))
        return out + grouped_means(x, out.shape[1])


class FramesDecoder(nn.Module):
    """`forward([B, C, f, h, w])` -> `[B, 3, F, H, W]`."""

    def __init__(self, config: HunyuanImageRefinerVaeConfig) -> None:
        super().__init__()
        levels = config.level_channels[::-1]
        self.repeats = levels[0] // config.frame_channels
        self.conv_in = EdgeConv3d(config.frame_channels, levels[0])
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
        self.conv_out = EdgeConv3d(levels[-1], config.image_channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.mid(self.conv_in(x) + x.repeat_interleave(self.repeats, dim=1))
        for level in self.up:
            x = level(x)
        out: torch.Tensor = self.conv_out(functional.silu(self.norm_out(x)))
        return out


class HunyuanImageRefinerVae(nn.Module):
    """The autoencoder of images: a batch of them is no video."""

    latent_dim = 3
    frames_ratio = FRAMES_RATIO
    is_of_images = True

    def __init__(self, config: HunyuanImageRefinerVaeConfig) -> None:
        super().__init__()
        self.config = config
        self.latent_channels = config.frame_channels * 2
        self.downscale_ratio = 2**config.num_levels
        self.encoder, self.decoder = FramesEncoder(config), FramesDecoder(config)

    @property
    def encode_bytes_per_pixel(self) -> int:
        """Bytes of working memory per pixel of a frame and byte of the dtype, for encoding."""
        return BYTES_PER_PIXEL * self.config.level_channels[0] // MEASURED_CHANNELS

    @property
    def decode_bytes_per_cell(self) -> int:
        """Bytes of working memory per latent cell of a frame and byte of the dtype, for decoding."""
        cell_px: int = self.downscale_ratio**2
        return self.encode_bytes_per_pixel * cell_px

    def encode(self, images: torch.Tensor) -> torch.Tensor:
        """Return the mean of the posterior [B, 2 * C, f, h, w].

        Raises ValueError for a number of frames that does not make pairs with the first one twice.
        """
        mean = self.encoder(images).chunk(2, dim=1)[0]
        frames = torch.cat([mean[:, :, :1], mean], dim=2)
        if frames.shape[2] % 2:
            raise ValueError(
                f"pixels: their latent frames do not make pairs; got {images.shape[2]} frames, expected one, or "
                "1 + 8n of a video"
            )
        batch, channels, count, height, width = frames.shape
        pairs = frames.transpose(1, 2).reshape(batch, count // 2, 2 * channels, height, width)
        return pairs.transpose(1, 2).contiguous()

    def decode(self, latents: torch.Tensor) -> torch.Tensor:
        """Return the images [B, 3, F, H, W] of latents."""
        batch, channels, count, height, width = latents.shape
        frames = latents.transpose(1, 2).reshape(batch, count * 2, channels // 2, height, width).transpose(1, 2)
        out: torch.Tensor = self.decoder(frames[:, :, 1:])
        return out
