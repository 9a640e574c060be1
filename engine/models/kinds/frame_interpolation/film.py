"""FILM's network (Reda et al., "Frame Interpolation for Large Motion", arXiv 2202.04901).

A pyramid of features of each frame, flows between the two from the coarsest level to the finest, both frames warped to
the time between, and a decoder that joins them. `B` batch, `H W` pixels of a level, values 0..1; the first level is the
frame itself. Module names are those of the published files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.layers.basic import Conv2d
from darkroom.engine.models.kinds.frame_interpolation.warp import warp_by_borders

SLOPE = 0.2  # of the leaky rectifiers, below zero
NUM_LEVELS = 7  # of a frame's pyramid
NUM_SUBLEVELS = 4  # that the features of a level reach up
NUM_FUSED_LEVELS = 5
FLOW_CONVS = (3, 3, 3, 3)  # convolutions of the estimators, the finest first
FLOW_MULTIPLES = (0.5, 1, 2, 4)  # of the channels, likewise

Pyramid = list[torch.Tensor]


@dataclass(frozen=True, slots=True)
class FilmConfig:
    """Configuration: the channels of the finest level, of which those of all others are multiples."""

    channels: int = 64


class PaddedConv(nn.Module):
    """A convolution that keeps the size, with a leaky rectifier behind it unless `is_linear`."""

    def __init__(self, in_channels: int, out_channels: int, size: int, *, is_linear: bool = False) -> None:
        super().__init__()
        self.conv = Conv2d(in_channels, out_channels, size, padding=size // 2 if size % 2 else 0)
        self.is_even, self.is_linear = size % 2 == 0, is_linear

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.is_even:
            x = functional.pad(x, (0, 1, 0, 1))
        x = self.conv(x)
        return x if self.is_linear else functional.leaky_relu(x, SLOPE)


class SublevelExtractor(nn.Module):
    """Features of one image at its size, half of it, a quarter..., as many as there are convolutions or `count`."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        widths = [3, *(channels << index for index in range(NUM_SUBLEVELS))]
        self.convs = nn.ModuleList(
            nn.Sequential(PaddedConv(before, after, 3), PaddedConv(after, after, 3))
            for before, after in zip(widths, widths[1:], strict=False)
        )

    def forward(self, image: torch.Tensor, count: int) -> Pyramid:
        found: Pyramid = []
        for layer in self.convs[:count]:
            found.append(layer(functional.avg_pool2d(found[-1], 2) if found else image))
        return found


class FeatureExtractor(nn.Module):
    """Features of every level, joined of the sublevels of that size of all levels below it."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.extract_sublevels = SublevelExtractor(channels)

    def forward(self, images: Pyramid) -> Pyramid:
        found = [
            self.extract_sublevels(image, min(len(images) - level, NUM_SUBLEVELS)) for level, image in enumerate(images)
        ]
        return [
            torch.cat([found[level - up][up] for up in range(min(level + 1, NUM_SUBLEVELS))], dim=1)
            for level in range(len(images))
        ]


class FlowEstimator(nn.Module):
    """The flow [B, 2, H, W] from features of one frame to those of another."""

    def __init__(self, in_channels: int, num_convs: int, channels: int) -> None:
        super().__init__()
        widths = [in_channels, *([channels] * num_convs)]
        layers = [PaddedConv(before, after, 3) for before, after in zip(widths, widths[1:], strict=False)]
        layers += [PaddedConv(channels, channels // 2, 1), PaddedConv(channels // 2, 2, 1, is_linear=True)]
        self._convs = nn.ModuleList(layers)

    def forward(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        x = torch.cat((first, second), dim=1)
        for conv in self._convs:
            x = conv(x)
        return x


class FlowPyramid(nn.Module):
    """The flow between two frames, the coarsest level first: what each level adds to that of the level above."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        made, in_channels = [], 0
        for level, (num_convs, multiple) in enumerate(zip(FLOW_CONVS, FLOW_MULTIPLES, strict=True)):
            in_channels += 2 * (channels << level)
            made.append(FlowEstimator(in_channels, num_convs, int(channels * multiple)))
        self._predictor = made[-1]  # of all levels that have none of their own
        self._predictors = nn.ModuleList(reversed(made[:-1]))  # of the finest levels, the finest last

    def forward(self, first: Pyramid, second: Pyramid) -> Pyramid:
        """Return the flows of all levels, the finest first."""
        flows = [self._predictor(first[-1], second[-1])]
        own = {len(self._predictors) - 1 - index: item for index, item in enumerate(self._predictors)}
        for level in range(len(first) - 2, -1, -1):
            flow = _doubled(flows[-1], first[level])
            estimate = own.get(level, self._predictor)
            flows.append(flow + estimate(first[level], warp_by_borders(second[level], flow)))
        return flows[::-1]


class Decoder(nn.Module):
    """The frame made of both warped pyramids and their flows, from the coarsest level to the finest."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.output_conv = Conv2d(channels, 3, 1)
        self.convs = nn.ModuleList()
        below = _aligned_channels(NUM_FUSED_LEVELS - 1, channels)
        for level in reversed(range(NUM_FUSED_LEVELS - 1)):
            width = channels << level
            joined = _aligned_channels(level, channels) + width
            self.convs.append(
                nn.ModuleList(
                    (
                        PaddedConv(below, width, 2, is_linear=True),
                        PaddedConv(joined, width, 3),
                        PaddedConv(width, width, 3),
                    )
                )
            )
            below = width

    def forward(self, aligned: Pyramid) -> torch.Tensor:
        x = aligned[-1]
        for layers, level in zip(self.convs, reversed(aligned[:-1]), strict=True):
            reduce, join, refine = _each(layers)
            x = reduce(functional.interpolate(x, size=level.shape[2:], mode="nearest"))
            x = refine(join(torch.cat((level, x), dim=1)))
        frame: torch.Tensor = self.output_conv(x)
        return frame


class Film(nn.Module):
    """The whole network. Frames are at least so large that their coarsest level has a pixel."""

    multiple = 1
    smallest_side_px = 1 << (NUM_LEVELS - 1)
    bytes_per_pixel = 1700  # of working memory, for each byte of a value

    def __init__(self, config: FilmConfig) -> None:
        super().__init__()
        self.config = config
        self.extract = FeatureExtractor(config.channels)
        self.predict_flow = FlowPyramid(config.channels)
        self.fuse = Decoder(config.channels)

    def features(self, frame: torch.Tensor) -> tuple[Pyramid, Pyramid]:
        """Return the levels of a frame [1, 3, H, W] and their features."""
        images = [frame]
        for _ in range(NUM_LEVELS - 1):
            images.append(functional.avg_pool2d(images[-1], 2))
        return images, self.extract(images)

    def between(
        self,
        frames: tuple[torch.Tensor, torch.Tensor],
        features: tuple[tuple[Pyramid, Pyramid], tuple[Pyramid, Pyramid]],
        times: Sequence[float],
    ) -> Iterator[torch.Tensor]:
        """Yield the frame [1, 3, H, W] at each of the times, 0 that of the first frame and 1 that of the second."""
        (_, first), (_, second) = features
        onward = self.predict_flow(first, second)[:NUM_FUSED_LEVELS]
        back = self.predict_flow(second, first)[:NUM_FUSED_LEVELS]
        seen = [
            [torch.cat(level, dim=1) for level in zip(images, found, strict=True)][:NUM_FUSED_LEVELS]
            for images, found in features
        ]
        for time in times:
            yield self.fuse(
                [
                    _aligned(first, second, back_flow * time, onward_flow * (1 - time))
                    for first, second, back_flow, onward_flow in zip(*seen, back, onward, strict=True)
                ]
            )


def _each(layers: nn.Module) -> list[nn.Module]:
    return list(layers.children())


def _aligned(
    first: torch.Tensor, second: torch.Tensor, to_first: torch.Tensor, to_second: torch.Tensor
) -> torch.Tensor:
    """Join one level of both frames, warped by the flows from the time between, with these flows."""
    return torch.cat((warp_by_borders(first, to_first), warp_by_borders(second, to_second), to_first, to_second), dim=1)


def _aligned_channels(level: int, channels: int) -> int:
    """Return the channels of `_aligned`: of both frames an image, a flow, and the features of a level."""
    return 2 * (3 + 2 + sum(channels << below for below in range(min(level + 1, NUM_SUBLEVELS))))


def _doubled(flow: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return a flow at the size of the next finer level."""
    return functional.interpolate(flow, size=like.shape[2:], mode="bilinear") * 2
