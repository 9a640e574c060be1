"""The causal 3-D autoencoder of Wan 2.1 (Wan Team 2025, arXiv 2503.20314, section 4.1), of any width.

Videos `[B, 3, F, H, W]` in -1..1 of 1 + 4n frames, latents `[B, C, 1 + n, H/8, W/8]` unscaled; an image is a video of
one frame. No layer sees later frames, so that a video passes through in pieces of one latent frame, each layer
remembering the frames before. Module names are those of the original checkpoints.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional
from torch.nn.functional import scaled_dot_product_attention

from darkroom.engine.layers.basic import Conv2d
from darkroom.engine.layers.frame_memory import FrameMemory
from darkroom.engine.layers.norms import ChannelNorm
from darkroom.engine.layers.shapes import Shapes

# Bytes of working memory per pixel of a frame and byte of the dtype, of the 96-channel network (ComfyUI's).
ENCODE_BYTES_PER_PIXEL = 6000
DECODE_BYTES_PER_PIXEL = 7000
MEASURED_CHANNELS = 96
KERNEL = 3  # of convolutions, a side
FRAMES_BEFORE = 2  # that a convolution of three frames looks back
FRAMES_AT_ONCE = 4  # of a video, behind its first one, for one latent frame
MARK = "decoder.middle.0.residual.0.gamma"
NESTED_MARK = "decoder.upsamples.0.upsamples.0.residual.2.weight"  # of the autoencoder of Wan 2.2
LAST_NORM = "decoder.head.0.gamma"


@dataclass(frozen=True, slots=True)
class WanVaeConfig:
    """Configuration of the network. `level_factors`: channels per level by `base_channels`, largest image first.

    Every level but the last halves the image; where `halves_time` says so, the number of frames too. Images of 4
    channels have opacity.
    """

    base_channels: int = 96
    latent_channels: int = 16
    level_factors: tuple[int, ...] = (1, 2, 4, 4)
    blocks_per_level: int = 2
    halves_time: tuple[bool, ...] = (False, True, True)
    image_channels: int = 3


def wan_vae_config(shapes: Shapes) -> WanVaeConfig:
    """Return the configuration of the network with these tensors (names without prefix)."""
    return WanVaeConfig(
        base_channels=shapes[LAST_NORM][0],
        latent_channels=shapes["conv2.weight"][0],
        image_channels=shapes["encoder.conv1.weight"][1],
    )


class CausalConv3d(nn.Conv3d):
    """A convolution of each frame with those before it; before the first one there is nothing (zeros)."""

    def __init__(
        self, in_channels: int, out_channels: int, kernel: int | tuple[int, int, int], *, stride: int = 1
    ) -> None:
        time, height, width = (kernel,) * 3 if isinstance(kernel, int) else kernel
        super().__init__(
            in_channels, out_channels, (time, height, width), stride=(stride, 1, 1),
            padding=(0, height // 2, width // 2),
        )  # fmt: skip

    def forward(self, input: torch.Tensor, memory: FrameMemory | None = None) -> torch.Tensor:
        """Return frames [B, C, F, h, w]. A layer without `memory` starts a video."""
        if self.kernel_size[0] == 1:
            return super().forward(input)
        before = None if memory is None else memory.of(self)
        is_image = before is None and input.shape[2] == 1
        if before is None:
            before = input.new_zeros(*input.shape[:2], FRAMES_BEFORE, *input.shape[3:])
        frames = torch.cat([before, input], dim=2)
        if memory is not None:
            memory.keep(self, frames[:, :, -FRAMES_BEFORE:])
        if is_image:  # the kernel's last slice alone meets something: a third of the work
            flat = functional.conv2d(input.squeeze(2), self.weight[:, :, -1], self.bias, padding=self._plane_padding())
            return flat.unsqueeze(2)
        return super().forward(frames)

    def _plane_padding(self) -> tuple[int, int]:
        return self.kernel_size[1] // 2, self.kernel_size[2] // 2


class ResidualBlock(nn.Module):
    """Two convolutions beside a shortcut, of `time_kernel` frames each."""

    def __init__(self, in_channels: int, out_channels: int, *, time_kernel: int = KERNEL) -> None:
        super().__init__()
        kernel = (time_kernel, KERNEL, KERNEL)
        self.residual = nn.ModuleDict(
            {
                "0": ChannelNorm(in_channels, num_places=3),
                "2": CausalConv3d(in_channels, out_channels, kernel),
                "3": ChannelNorm(out_channels, num_places=3),
                "6": CausalConv3d(out_channels, out_channels, kernel),
            }
        )
        changes_width = in_channels != out_channels
        self.shortcut = CausalConv3d(in_channels, out_channels, 1) if changes_width else nn.Identity()

    def forward(self, x: torch.Tensor, memory: FrameMemory) -> torch.Tensor:
        h = self.residual["2"](functional.silu(self.residual["0"](x)), memory)
        h = self.residual["6"](functional.silu(self.residual["3"](h)), memory)
        out: torch.Tensor = h + self.shortcut(x)
        return out


class AttentionBlock(nn.Module):
    """Self-attention of all cells of each frame with one head."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = ChannelNorm(channels, num_places=2)
        self.to_qkv = Conv2d(channels, channels * 3, 1)
        self.proj = Conv2d(channels, channels, 1)

    def forward(self, x: torch.Tensor, memory: FrameMemory) -> torch.Tensor:
        frames = _as_images(x)  # [B * F, C, h, w]
        q, k, v = (
            part.flatten(2).transpose(1, 2).unsqueeze(1).contiguous()  # [B * F, 1, h * w, C]
            for part in self.to_qkv(self.norm(frames)).chunk(3, dim=1)
        )
        attended = scaled_dot_product_attention(q, k, v).squeeze(1).transpose(1, 2).reshape(frames.shape)
        return x + _as_video(self.proj(attended), x.shape[2])


class Downsample(nn.Module):
    """Halving of the image, and of the frames behind a video's first one where `halves_time`."""

    def __init__(self, channels: int, *, halves_time: bool, time_kernel: int = KERNEL) -> None:
        super().__init__()
        self.resample = nn.ModuleDict({"1": Conv2d(channels, channels, 3, stride=2)})
        kernel = (time_kernel, 1, 1)
        self.time_conv = nn.Conv3d(channels, channels, kernel, stride=(2, 1, 1)) if halves_time else None

    def forward(self, x: torch.Tensor, memory: FrameMemory) -> torch.Tensor:
        small = _as_video(self.resample["1"](functional.pad(_as_images(x), (0, 1, 0, 1))), x.shape[2])
        if self.time_conv is None:
            return small
        before = memory.of(self)
        memory.keep(self, small[:, :, -1:])
        if before is None:
            return small
        out: torch.Tensor = self.time_conv(torch.cat([before, small], dim=2))
        return out


class Upsample(nn.Module):
    """Doubling of the image, at half the channels by default, and of frames behind the first if `doubles_time`."""

    def __init__(
        self, channels: int, *, doubles_time: bool, out_channels: int | None = None, time_kernel: int = KERNEL
    ) -> None:
        super().__init__()
        out = channels // 2 if out_channels is None else out_channels
        self.resample = nn.ModuleDict({"1": Conv2d(channels, out, 3, padding=1)})
        self.time_conv = CausalConv3d(channels, channels * 2, (time_kernel, 1, 1)) if doubles_time else None

    def forward(self, x: torch.Tensor, memory: FrameMemory) -> torch.Tensor:
        if self.time_conv is not None:
            x = self._with_more_frames(x, memory, self.time_conv)
        large = functional.interpolate(_as_images(x), scale_factor=2.0, mode="nearest-exact")
        return _as_video(self.resample["1"](large), x.shape[2])

    def _with_more_frames(self, x: torch.Tensor, memory: FrameMemory, time_conv: CausalConv3d) -> torch.Tensor:
        """Return two frames for each of `x`. A video's first one stays one, and is not seen by those behind it."""
        if memory.of(time_conv) is None:
            memory.keep(time_conv, x.new_zeros(*x.shape[:2], FRAMES_BEFORE, *x.shape[3:]))
            return x
        batch, channels, frames, height, width = x.shape
        both: torch.Tensor = time_conv(x, memory).view(batch, 2, channels, frames, height, width)
        return both.movedim(1, 3).reshape(batch, channels, frames * 2, height, width)


def _as_images(x: torch.Tensor) -> torch.Tensor:
    """Return the frames of videos [B, C, F, h, w] as images [B * F, C, h, w]."""
    return x.transpose(1, 2).flatten(0, 1)


def _as_video(x: torch.Tensor, num_frames: int) -> torch.Tensor:
    """Return images [B * F, C, h, w] as the frames of videos [B, C, F, h, w]."""
    return x.reshape(-1, num_frames, *x.shape[1:]).transpose(1, 2)


class Stack(nn.Module):
    """Blocks between a first and a last convolution: half of the autoencoder."""

    def __init__(
        self, in_channels: int, first: int, last: int, out_channels: int, *, middle: int, time_kernel: int = KERNEL
    ) -> None:
        super().__init__()
        kernel = (time_kernel, KERNEL, KERNEL)
        self.conv1 = CausalConv3d(in_channels, first, kernel)
        before, behind = (ResidualBlock(middle, middle, time_kernel=time_kernel) for _ in range(2))
        self.middle = nn.ModuleList([before, AttentionBlock(middle), behind])
        self.head = nn.ModuleDict({"0": ChannelNorm(last, num_places=3), "2": CausalConv3d(last, out_channels, kernel)})

    def ended(self, x: torch.Tensor, memory: FrameMemory) -> torch.Tensor:
        out: torch.Tensor = self.head["2"](functional.silu(self.head["0"](x)), memory)
        return out


class Encoder(Stack):
    """`forward([B, 3, f, H, W], memory)` -> moments `[B, 2 * C, 1, H/8, W/8]`: of one frame first, then of four."""

    def __init__(self, config: WanVaeConfig) -> None:
        widths = [config.base_channels * factor for factor in (1, *config.level_factors)]
        super().__init__(config.image_channels, widths[0], widths[-1], config.latent_channels * 2, middle=widths[-1])
        blocks: list[nn.Module] = []
        for level, (before, channels) in enumerate(pairwise(widths)):
            for index in range(config.blocks_per_level):
                blocks.append(ResidualBlock(before if index == 0 else channels, channels))
            if level < len(config.halves_time):
                blocks.append(Downsample(channels, halves_time=config.halves_time[level]))
        self.downsamples = nn.ModuleList(blocks)

    def forward(self, x: torch.Tensor, memory: FrameMemory) -> torch.Tensor:
        x = self.conv1(x, memory)
        for block in (*self.downsamples, *self.middle):
            x = block(x, memory)
        return self.ended(x, memory)


class Decoder(Stack):
    """`forward([B, C, 1, h, w], memory)` -> frames `[B, 3, f, 8 * h, 8 * w]`: one first, then four at a time."""

    def __init__(self, config: WanVaeConfig) -> None:
        factors = (config.level_factors[-1], *reversed(config.level_factors))
        widths = [config.base_channels * factor for factor in factors]
        super().__init__(config.latent_channels, widths[0], widths[-1], config.image_channels, middle=widths[0])
        doubles_time = tuple(reversed(config.halves_time))
        blocks: list[nn.Module] = []
        for level, (before, channels) in enumerate(pairwise(widths)):
            given = before if level == 0 else before // 2  # the resize between them halves the channels
            for index in range(config.blocks_per_level + 1):
                blocks.append(ResidualBlock(given if index == 0 else channels, channels))
            if level < len(doubles_time):
                blocks.append(Upsample(channels, doubles_time=doubles_time[level]))
        self.upsamples = nn.ModuleList(blocks)

    def forward(self, x: torch.Tensor, memory: FrameMemory) -> torch.Tensor:
        x = self.conv1(x, memory)
        for block in (*self.middle, *self.upsamples):
            x = block(x, memory)
        return self.ended(x, memory)


class CausalVae(nn.Module):
    """An autoencoder of videos. `frames_ratio` frames, behind the first one, become one latent frame."""

    latent_dim = 3
    frames_ratio = FRAMES_AT_ONCE

    def __init__(self, encoder: nn.Module, decoder: nn.Module, *, latent_channels: int, downscale_ratio: int) -> None:
        super().__init__()
        self.latent_channels, self.downscale_ratio = latent_channels, downscale_ratio
        self.encoder, self.decoder = encoder, decoder
        self.conv1 = CausalConv3d(latent_channels * 2, latent_channels * 2, 1)
        self.conv2 = CausalConv3d(latent_channels, latent_channels, 1)

    def to_encoder(self, videos: torch.Tensor) -> torch.Tensor:
        """Return videos [B, C, F, H, W] as the encoder takes them."""
        return videos

    def from_decoder(self, frames: torch.Tensor) -> torch.Tensor:
        """Return the decoder's output as frames [B, C, F, H, W]."""
        return frames

    def encode(self, videos: torch.Tensor) -> torch.Tensor:
        """Return the mean of the posterior [B, C, 1 + n, h, w]. Frames beyond 1 + 4n are left out, as in ComfyUI."""
        memory = FrameMemory()
        frames = self.to_encoder(videos)
        parts = [self.encoder(frames[:, :, :1], memory)]
        for start in range(1, frames.shape[2] - FRAMES_AT_ONCE + 1, FRAMES_AT_ONCE):
            parts.append(self.encoder(frames[:, :, start : start + FRAMES_AT_ONCE], memory))
        moments: torch.Tensor = self.conv1(torch.cat(parts, dim=2))
        return moments.chunk(2, dim=1)[0]

    def decode(self, latents: torch.Tensor) -> torch.Tensor:
        """Return the frames [B, 3, 1 + 4n, H, W] of latents [B, C, 1 + n, h, w]."""
        return torch.cat([*self.decoded_pieces(latents)], dim=2)

    def decoded_pieces(self, latents: torch.Tensor) -> Iterator[torch.Tensor]:
        """Yield the frames of latents [B, C, 1 + n, h, w] in order: [B, 3, 1, H, W], then [B, 3, 4, H, W] each."""
        memory = FrameMemory()
        for frame in self.conv2(latents).split(1, dim=2):
            yield self.from_decoder(self.decoder(frame, memory))


class WanVae(CausalVae):
    """The autoencoder of Wan 2.1, and that of Qwen-Image-Layered, whose images have opacity."""

    missing_channel = 1.0  # of images without opacity

    def __init__(self, config: WanVaeConfig) -> None:
        super().__init__(
            Encoder(config), Decoder(config),
            latent_channels=config.latent_channels, downscale_ratio=2 ** len(config.halves_time),
        )  # fmt: skip
        self.config = config

    @property
    def output_channels(self) -> int:
        """Channels of its images."""
        return self.config.image_channels

    @property
    def encode_bytes_per_pixel(self) -> int:
        """Bytes of working memory per pixel of a frame and byte of the dtype, for encoding."""
        return ENCODE_BYTES_PER_PIXEL * self.config.base_channels // MEASURED_CHANNELS

    @property
    def decode_bytes_per_cell(self) -> int:
        """Bytes of working memory per latent cell of a frame and byte of the dtype, for decoding."""
        cell_px: int = self.downscale_ratio**2
        return DECODE_BYTES_PER_PIXEL * cell_px * self.config.base_channels // MEASURED_CHANNELS
