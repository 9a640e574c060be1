"""RIFE's network from version 4.25 on (Huang et al., "Real-Time Intermediate Flow Estimation", arXiv 2011.06294).

Five stages estimate the flow from the frame between two to each of them, the first at a sixteenth of the size; each
refines what the one before found. `B` batch, `H W` pixels (multiples of 64), values 0..1. Module names are those of
published files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.layers.basic import Conv2d
from darkroom.engine.models.kinds.frame_interpolation.warp import warp_by_corners

SCALES = (16, 8, 4, 2, 1)  # of the stages: how much smaller they work
SLOPE = 0.2  # of the leaky rectifiers, below zero
ENCODER_CHANNELS = 16
NUM_RESIDUALS = 8  # convolutions of a stage
FLOW_CHANNELS, STATE_CHANNELS = 4, 8  # two flows; what a stage hands to the next beside flow and mask
OUT_CHANNELS = FLOW_CHANNELS + 1 + STATE_CHANNELS
SHUFFLE = 2


@dataclass(frozen=True, slots=True)
class RifeConfig:
    """Configuration: channels of a frame's features, and of each stage."""

    feature_channels: int
    stage_channels: tuple[int, ...]


class FrameEncoder(nn.Module):
    """Features of a frame [B, 3, H, W] at its own size, [B, C, H, W]."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.cnn0 = Conv2d(3, ENCODER_CHANNELS, 3, stride=2, padding=1)
        self.cnn1 = Conv2d(ENCODER_CHANNELS, ENCODER_CHANNELS, 3, padding=1)
        self.cnn2 = Conv2d(ENCODER_CHANNELS, ENCODER_CHANNELS, 3, padding=1)
        self.cnn3 = nn.ConvTranspose2d(ENCODER_CHANNELS, channels, 4, stride=2, padding=1)

    def forward(self, frame: torch.Tensor) -> torch.Tensor:
        hidden = frame
        for conv in (self.cnn0, self.cnn1, self.cnn2):
            hidden = functional.leaky_relu(conv(hidden), SLOPE)
        features: torch.Tensor = self.cnn3(hidden)
        return features


class ScaledResidual(nn.Module):
    """A convolution beside its input, scaled by a weight for each channel."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = Conv2d(channels, channels, 3, padding=1)
        self.beta = nn.Parameter(torch.ones(1, channels, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.leaky_relu(x + self.conv(x) * self.beta, SLOPE)


class FlowStage(nn.Module):
    """One stage: changes of both flows [B, 4, H, W], mask [B, 1, H, W] and state [B, 8, H, W]."""

    def __init__(self, in_channels: int, channels: int) -> None:
        super().__init__()
        self.conv0 = nn.Sequential(
            nn.Sequential(Conv2d(in_channels, channels // 2, 3, stride=2, padding=1), nn.LeakyReLU(SLOPE)),
            nn.Sequential(Conv2d(channels // 2, channels, 3, stride=2, padding=1), nn.LeakyReLU(SLOPE)),
        )
        self.convblock = nn.Sequential(*(ScaledResidual(channels) for _ in range(NUM_RESIDUALS)))
        self.lastconv = nn.Sequential(
            nn.ConvTranspose2d(channels, OUT_CHANNELS * SHUFFLE**2, 4, stride=2, padding=1), nn.PixelShuffle(SHUFFLE)
        )

    def forward(
        self, x: torch.Tensor, flow: torch.Tensor | None, scale: int
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        small = _resized(x, 1 / scale)
        if flow is not None:
            small = torch.cat((small, _resized(flow, 1 / scale) / scale), dim=1)
        made = _resized(self.lastconv(self.convblock(self.conv0(small))), float(scale))
        change, mask, state = torch.split(made, [FLOW_CHANNELS, 1, STATE_CHANNELS], dim=1)
        return change * scale, mask, state


class Rife(nn.Module):
    """The whole network. `multiple` is what the sides of frames are padded to."""

    multiple = 64
    smallest_side_px = 1
    bytes_per_pixel = 300  # of working memory, for each byte of a value

    def __init__(self, config: RifeConfig) -> None:
        super().__init__()
        self.config = config
        self.encode = FrameEncoder(config.feature_channels)
        seen = 2 * (3 + config.feature_channels) + 1  # two frames, their features, and the time
        later = seen + FLOW_CHANNELS + 1 + STATE_CHANNELS
        self.blocks = nn.ModuleList(
            FlowStage(later if index else seen, channels) for index, channels in enumerate(config.stage_channels)
        )

    def features(self, frame: torch.Tensor) -> torch.Tensor:
        """Return the features of a frame [1, 3, H, W] that `between` uses besides its pixels."""
        encoded: torch.Tensor = self.encode(frame)
        return encoded

    def between(
        self,
        frames: tuple[torch.Tensor, torch.Tensor],
        features: tuple[torch.Tensor, torch.Tensor],
        times: Sequence[float],
    ) -> Iterator[torch.Tensor]:
        """Yield the frame [1, 3, H, W] at each of the times, 0 that of the first frame and 1 that of the second."""
        for time in times:
            yield self._at(frames, features, frames[0].new_full((1, 1, *frames[0].shape[2:]), time))

    def _at(
        self,
        frames: tuple[torch.Tensor, torch.Tensor],
        features: tuple[torch.Tensor, torch.Tensor],
        time: torch.Tensor,
    ) -> torch.Tensor:
        flow, mask, state = self.blocks[0](torch.cat((*frames, *features, time), dim=1), None, SCALES[0])
        for block, scale in zip(self.blocks[1:], SCALES[1:], strict=True):
            moved = (*_both_warped(frames, flow), *_both_warped(features, flow))
            change, mask, state = block(torch.cat((*moved, time, mask, state), dim=1), flow, scale)
            flow = flow + change
        first, second = _both_warped(frames, flow)
        return torch.lerp(second, first, torch.sigmoid(mask))


def _both_warped(images: tuple[torch.Tensor, torch.Tensor], flow: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return warp_by_corners(images[0], flow[:, :2]), warp_by_corners(images[1], flow[:, 2:])


def _resized(x: torch.Tensor, scale: float) -> torch.Tensor:
    return functional.interpolate(x, scale_factor=scale, mode="bilinear")
