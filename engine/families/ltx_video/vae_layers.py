"""Layers of the autoencoder of LTX-Video (`engine/families/ltx_video/vae.py`). Videos are `[B, C, F, h, w]`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.layers.basic import Linear
from darkroom.engine.layers.frame_memory import FrameMemory
from darkroom.engine.layers.unet_layers import timestep_embedding
from darkroom.engine.layers.video_cells import Stride, cells_of, folded, unfolded

PIXEL_EPS, LAYER_EPS = 1e-8, 1e-6
TIME_WIDTH = 256
KERNEL_FRAMES = 3
FRAMES_KEPT = 2  # that a convolution of three frames needs again

Padding = Literal["zeros", "reflect", "replicate", "circular"]  # torch's names


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage of the encoder or the decoder.

    `blocks` are `num_blocks` residual blocks, `width` is one that changes the number of channels, `strided` a
    convolution with steps, `folded` moves frames, rows and columns into channels or out of them. With `is_residual` a
    folded stage of the decoder adds its input.
    """

    kind: Literal["blocks", "width", "strided", "folded"]
    channels: int  # that leave it
    num_blocks: int = 1
    stride: Stride = (2, 2, 2)
    is_residual: bool = False
    adds_noise: bool = False


class PassingVideo(FrameMemory):
    """A video that passes through the decoder in pieces: frames that layers still need, and noise that they add.

    `noise` yields what layers add in the order in which they first ask. With `is_whole` one piece is the video.
    """

    def __init__(self, noise: Iterator[torch.Tensor], *, is_whole: bool = False) -> None:
        super().__init__()
        self._noise = noise
        self._is_whole = is_whole
        self._given: dict[tuple[nn.Module, str], torch.Tensor] = {}
        self._places: dict[nn.Module, int] = {}
        self._ending: int | None = None

    def endings(self) -> Iterator[None]:
        """End one layer after the other, first to last, so that the frames they still hold leave a few at a time.

        Let a piece without frames pass after each.
        """
        for place in range(len(self._places)):
            self._ending = place
            yield

    def ends_at(self, layer: nn.Module) -> bool:
        """Return True where no frames follow those that a layer is given now."""
        return self._places.setdefault(layer, len(self._places)) == self._ending or self._is_whole

    def noise_for(self, layer: nn.Module, name: str) -> torch.Tensor:
        """Return the noise [h, w] of a layer, the same for all pieces."""
        if (layer, name) not in self._given:
            self._given[layer, name] = next(self._noise)
        return self._given[layer, name]

    def delayed(self, layer: nn.Module, frames: torch.Tensor, number: int) -> torch.Tensor:
        """Return the first `number` of the frames that a layer was given and has not taken back."""
        kept = self.of(layer)
        waiting = frames if kept is None else torch.cat([kept, frames], dim=2)
        self.keep(layer, waiting[:, :, number:])
        return waiting[:, :, :number]


class VideoConv3d(nn.Module):
    """A convolution of 3 frames; the first and, where later frames are seen, the last one is repeated outside."""

    def __init__(self, in_channels: int, out_channels: int, padding: Padding, stride: Stride = (1, 1, 1)) -> None:
        super().__init__()
        self.conv = nn.Conv3d(in_channels, out_channels, 3, stride, padding=(0, 1, 1), padding_mode=padding)

    def forward(self, x: torch.Tensor, *, is_causal: bool, video: PassingVideo | None = None) -> torch.Tensor:
        """Return [B, C, F, h, w]; of a piece of a video the frames whose neighbours have come, perhaps none."""
        before = None if video is None else video.of(self)
        if before is None:
            before = x[:, :, :1].repeat(1, 1, 2 if is_causal else 1, 1, 1)
        frames = torch.cat([before, x], dim=2)
        if video is not None and x.shape[2]:
            step = self.conv.stride[0]
            video.keep(self, frames[:, :, -(KERNEL_FRAMES - step + (frames.shape[2] - KERNEL_FRAMES) % step) :])
        if (video is None or video.ends_at(self)) and not is_causal:
            frames = torch.cat([frames, frames[:, :, -1:]], dim=2)
        if frames.shape[2] <= FRAMES_KEPT:
            return x.new_empty(x.shape[0], self.conv.out_channels, 0, *x.shape[3:])
        out: torch.Tensor = self.conv(frames)
        return out


def normed(x: torch.Tensor) -> torch.Tensor:
    """Divide the channels [B, C, ...] of every cell by their root mean square."""
    return x / torch.sqrt(torch.mean(x**2, dim=1, keepdim=True) + PIXEL_EPS)


class ChannelsNorm(nn.Module):
    """Layer norm of the channels [B, C, F, h, w] of every cell."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(channels, eps=LAYER_EPS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.norm(x.movedim(1, -1))
        return out.movedim(-1, 1)


class TimeEmbedder(nn.Module):
    """Times [B] -> [B, W]."""

    def __init__(self, width: int) -> None:
        super().__init__()
        layers = {"linear_1": Linear(TIME_WIDTH, width), "linear_2": Linear(width, width)}
        self.timestep_embedder = nn.ModuleDict(layers)

    def forward(self, times: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        hidden = self.timestep_embedder["linear_1"](timestep_embedding(times, TIME_WIDTH).to(dtype))
        out: torch.Tensor = self.timestep_embedder["linear_2"](functional.silu(hidden))
        return out


class ResidualBlock(nn.Module):
    """Two convolutions beside a shortcut. `is_timed`: it takes shifts and scales from the time."""

    def __init__(
        self, in_channels: int, channels: int, padding: Padding, *, is_timed: bool = False, adds_noise: bool = False
    ) -> None:
        super().__init__()
        self.conv1 = VideoConv3d(in_channels, channels, padding)
        self.conv2 = VideoConv3d(channels, channels, padding)
        changes_width = in_channels != channels
        self.conv_shortcut = nn.Conv3d(in_channels, channels, 1) if changes_width else nn.Identity()
        self.norm3 = ChannelsNorm(in_channels) if changes_width else nn.Identity()
        self.adds_noise = adds_noise
        if adds_noise:
            self.per_channel_scale1, self.per_channel_scale2 = (
                nn.Parameter(torch.empty(in_channels, 1, 1)) for _ in range(2)
            )
        self.is_timed = is_timed
        if is_timed:
            self.scale_shift_table = nn.Parameter(torch.empty(4, in_channels))

    def forward(
        self, x: torch.Tensor, *, is_causal: bool, time: torch.Tensor | None = None, video: PassingVideo | None = None
    ) -> torch.Tensor:
        """Return [B, C, F, h, w]. `time` is [B, 4 * C]."""
        h, second = normed(x), None
        if time is not None and self.is_timed:
            moved = self.scale_shift_table.to(x) + time.view(x.shape[0], 4, -1)  # [B, 4, C]
            shift, scale, *second = moved[..., None, None, None].unbind(1)
            h = h * (1 + scale) + shift
        h = self.conv1(functional.silu(h), is_causal=is_causal, video=video)
        h = self._with_noise(h, "per_channel_scale1", video)
        h = normed(h)
        if second is not None:
            h = h * (1 + second[1]) + second[0]
        h = self.conv2(functional.silu(h), is_causal=is_causal, video=video)
        h = self._with_noise(h, "per_channel_scale2", video)
        entered = x if video is None else video.delayed(self, x, h.shape[2])
        return self.conv_shortcut(self.norm3(entered)) + h if h.shape[2] else h

    def _with_noise(self, h: torch.Tensor, name: str, video: PassingVideo | None) -> torch.Tensor:
        if not self.adds_noise or video is None or not h.shape[2]:
            return h
        noise = video.noise_for(self, name)
        return h + (noise[None] * self.get_parameter(name).to(h))[None, :, None]


class BlocksStage(nn.Module):
    def __init__(self, stage: Stage, padding: Padding, *, is_timed: bool) -> None:
        super().__init__()
        channels = stage.channels
        self.time_embedder = TimeEmbedder(4 * channels) if is_timed else None
        self.res_blocks = nn.ModuleList(
            ResidualBlock(channels, channels, padding, is_timed=is_timed, adds_noise=stage.adds_noise)
            for _ in range(stage.num_blocks)
        )

    def forward(
        self, x: torch.Tensor, *, is_causal: bool, time: torch.Tensor | None = None, video: PassingVideo | None = None
    ) -> torch.Tensor:
        """Return [B, C, F, h, w]. `time` [B] is how noisy the latent is."""
        vec = None if self.time_embedder is None or time is None else self.time_embedder(time, x.dtype)
        for block in self.res_blocks:
            x = block(x, is_causal=is_causal, time=vec, video=video)
        return x


class WidthStage(ResidualBlock):
    def forward(
        self, x: torch.Tensor, *, is_causal: bool, time: torch.Tensor | None = None, video: PassingVideo | None = None
    ) -> torch.Tensor:
        return super().forward(x, is_causal=is_causal, video=video)


class StridedStage(VideoConv3d):
    """A convolution with steps, which the encoder takes a video down by."""


class FoldedDownStage(nn.Module):
    """Frames, rows and columns become channels, beside their means."""

    def __init__(self, in_channels: int, stage: Stage, padding: Padding) -> None:
        super().__init__()
        self.stride = stage.stride
        self.out_channels = stage.channels
        self.conv = VideoConv3d(in_channels, stage.channels // cells_of(stage.stride), padding)

    def forward(
        self, x: torch.Tensor, *, is_causal: bool, time: torch.Tensor | None = None, video: PassingVideo | None = None
    ) -> torch.Tensor:
        if self.stride[0] == 2 and (video is None or video.of(self.conv) is None):
            x = torch.cat([x[:, :, :1], x], dim=2)
        inputs = folded(x, self.stride)
        means = inputs.view(x.shape[0], self.out_channels, -1, *inputs.shape[2:]).mean(dim=2)
        return folded(self.conv(x, is_causal=is_causal, video=video), self.stride) + means


class FoldedUpStage(nn.Module):
    """Channels become frames, rows and columns, beside the input itself where the stage is residual."""

    def __init__(self, in_channels: int, stage: Stage, padding: Padding) -> None:
        super().__init__()
        self.stride, self.is_residual = stage.stride, stage.is_residual
        self.repeats = cells_of(stage.stride) * stage.channels // in_channels
        self.conv = VideoConv3d(in_channels, cells_of(stage.stride) * stage.channels, padding)

    def forward(
        self, x: torch.Tensor, *, is_causal: bool, time: torch.Tensor | None = None, video: PassingVideo | None = None
    ) -> torch.Tensor:
        h: torch.Tensor = self.conv(x, is_causal=is_causal, video=video)
        if video is not None:
            x = video.delayed(self, x, h.shape[2])
        if not h.shape[2]:
            rows, columns = h.shape[3] * self.stride[1], h.shape[4] * self.stride[2]
            return h.new_empty(h.shape[0], h.shape[1] // cells_of(self.stride), 0, rows, columns)
        first = 1 if self.stride[0] == 2 and self._is_start(video) else 0  # of two frames made from the first one
        out = unfolded(h, self.stride)[:, :, first:]
        if not self.is_residual:
            return out
        return out + unfolded(x, self.stride).repeat(1, self.repeats, 1, 1, 1)[:, :, first:]

    def _is_start(self, video: PassingVideo | None) -> bool:
        """Return True for the first frames that leave the stage."""
        is_start = video is None or video.of(self.conv.conv) is None
        if video is not None:
            video.keep(self.conv.conv, torch.empty(0))
        return is_start


class ChannelStatistics(nn.Module):
    """Means and deviations of the latent's channels."""

    NAMES = ("std-of-means", "mean-of-means")

    def __init__(self, channels: int) -> None:
        super().__init__()
        for name in self.NAMES:
            self.register_parameter(name, nn.Parameter(torch.empty(channels), requires_grad=False))

    def _moments(self, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mean, deviation = (
            self.get_parameter(name).to(like).view(1, -1, 1, 1, 1) for name in ("mean-of-means", "std-of-means")
        )
        return mean, deviation

    def normalised(self, latents: torch.Tensor) -> torch.Tensor:
        mean, deviation = self._moments(latents)
        return (latents - mean) / deviation

    def restored(self, latents: torch.Tensor) -> torch.Tensor:
        mean, deviation = self._moments(latents)
        return latents * deviation + mean
