"""MediaPipe's two detectors of faces: BlazeFace for faces within two metres, and one for farther ones.

`B` images, `A` anchors. Each anchor has a box, six points and a score, all as offsets in pixels of what the network
reads, and a logit.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.layers.basic import Conv2d
from darkroom.engine.models.kinds.face_landmarks.blaze_layers import (
    BlazeBlock,
    Blocks,
    conv_of_channels,
    conv_of_pixels,
    padded_for,
    rows_of,
)

IMAGE_CHANNELS = 3
VALUES = 16
"""Offsets of an anchor: centre, width and height of the box, then x and y of each point."""

SHORT_BLOCKS: Final[Blocks] = (
    (24, 24, 1), (24, 28, 1), (28, 32, 2), (32, 36, 1), (36, 42, 1), (42, 48, 2), (48, 56, 1), (56, 64, 1),
    (64, 72, 1), (72, 80, 1), (80, 88, 1), (88, 96, 2), (96, 96, 1), (96, 96, 1), (96, 96, 1), (96, 96, 1),
)  # fmt: skip
FINE_BLOCKS = 11  # before the finer of two levels with anchors
FINE_ANCHORS, COARSE_ANCHORS = 2, 6  # a cell

FULL_STEM = 32
FULL_BLOCKS = (
    (32, 8, 32, 1), (32, 8, 32, 1),
    (32, 16, 64, 2), (64, 16, 64, 1), (64, 16, 64, 1),
    (64, 32, 128, 2), (128, 32, 128, 1), (128, 32, 128, 1),
    (128, 48, 192, 2), (192, 48, 192, 1), (192, 48, 192, 1),
    (192, 96, 384, 2), (384, 96, 384, 1), (384, 96, 384, 1), (384, 96, 384, 1),
)  # fmt: skip
"""Channels of input, middle and output, and stride."""

LATERAL_BLOCKS = (4, 7, 10)
LATERAL_CHANNELS = ((64, 48), (128, 64), (192, 96))
DECODER_BLOCKS = (((96, 48, 96, 1),) * 2, ((64, 32, 64, 1),) * 2, ((48, 24, 48, 1),))
HEAD_CHANNELS = 48
SPREAD = 2  # cells a side that a cell of the heads becomes


class ShortRangeDetector(nn.Module):
    """BlazeFace. `forward(images [B, 3, 128, 128], -1..1)` -> offsets [B, 896, 16], logits [B, 896]."""

    side_px = 128
    grids = ((16, FINE_ANCHORS), (8, COARSE_ANCHORS))
    """Cells a side, and anchors of each cell, of the levels."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = Conv2d(IMAGE_CHANNELS, SHORT_BLOCKS[0][0], 5, 2)
        self.blocks = nn.ModuleList(BlazeBlock(*block) for block in SHORT_BLOCKS)
        fine, coarse = SHORT_BLOCKS[FINE_BLOCKS - 1][1], SHORT_BLOCKS[-1][1]
        self.cls_16 = conv_of_pixels(fine, FINE_ANCHORS)
        self.cls_8 = conv_of_pixels(coarse, COARSE_ANCHORS)
        self.reg_16 = conv_of_pixels(fine, FINE_ANCHORS * VALUES)
        self.reg_8 = conv_of_pixels(coarse, COARSE_ANCHORS * VALUES)

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = functional.relu(self.stem(padded_for(images, 5, 2)))
        for block in self.blocks[:FINE_BLOCKS]:
            x = block(x)
        fine = x
        for block in self.blocks[FINE_BLOCKS:]:
            x = block(x)
        offsets = torch.cat((rows_of(self.reg_16(fine), VALUES), rows_of(self.reg_8(x), VALUES)), dim=1)
        logits = torch.cat((rows_of(self.cls_16(fine), 1), rows_of(self.cls_8(x), 1)), dim=1)
        return offsets, logits[..., 0]


class InvertedBlock(nn.Module):
    """Two separable convolutions, few channels between them, with what it got added where that has the same shape."""

    def __init__(self, in_channels: int, middle: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.is_residual = in_channels == out_channels and stride == 1
        self.dw1 = conv_of_channels(in_channels, stride)
        self.pw1 = conv_of_pixels(in_channels, middle)
        self.dw2 = conv_of_channels(middle)
        self.pw2 = conv_of_pixels(middle, out_channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = functional.relu(self.pw1(self.dw1(_framed(x))))
        out = self.pw2(self.dw2(_framed(hidden)))
        return functional.relu(out + x if self.is_residual else out)


class FullRangeDetector(nn.Module):
    """The detector of farther faces. `forward(images [B, 3, 192, 192], -1..1)` -> offsets [B, 2304, 16], logits."""

    side_px = 192
    grids = ((48, 1),)

    def __init__(self) -> None:
        super().__init__()
        self.stem = Conv2d(IMAGE_CHANNELS, FULL_STEM, 3, 2)
        self.backbone = nn.ModuleList(InvertedBlock(*block) for block in FULL_BLOCKS)
        self.lateral_convs = nn.ModuleList(conv_of_pixels(*channels) for channels in LATERAL_CHANNELS)
        levels = [level[0][0] for level in DECODER_BLOCKS]
        self.top_conv = conv_of_pixels(FULL_BLOCKS[-1][2], levels[0])
        self.decoder_levels = nn.ModuleList(
            nn.Sequential(*(InvertedBlock(*block) for block in level)) for level in DECODER_BLOCKS
        )
        between = zip(levels[:-1], levels[1:], strict=True)
        self.decoder_reduce_convs = nn.ModuleList(conv_of_pixels(*channels) for channels in between)
        self.cls_conv = conv_of_pixels(HEAD_CHANNELS, SPREAD**2)
        self.cls_dw = conv_of_channels(SPREAD**2, SPREAD)
        self.reg_conv = conv_of_pixels(HEAD_CHANNELS, SPREAD**2 * VALUES)
        self.reg_dw = conv_of_channels(SPREAD**2 * VALUES, SPREAD)

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = functional.relu(self.stem(_framed(images)))
        laterals: list[torch.Tensor] = []
        for index, block in enumerate(self.backbone):
            x = block(x)
            if index in LATERAL_BLOCKS:
                laterals.append(functional.relu(self.lateral_convs[len(laterals)](x)))
        x = functional.relu(self.top_conv(x))
        for index, lateral in enumerate(reversed(laterals)):
            if index:
                x = functional.relu(self.decoder_reduce_convs[index - 1](x))
            x = functional.interpolate(x, size=lateral.shape[-2:], mode="bilinear") + lateral
            x = self.decoder_levels[index](x)
        offsets = _spread(self.reg_dw(_framed(self.reg_conv(x))))
        logits = _spread(self.cls_dw(_framed(self.cls_conv(x))))
        return rows_of(offsets, VALUES), rows_of(logits, 1)[..., 0]


def _framed(x: torch.Tensor) -> torch.Tensor:
    return functional.pad(x, (1, 1, 1, 1))


def _spread(x: torch.Tensor) -> torch.Tensor:
    """Return [B, C, 2h, 2w] of [B, 4 C, h, w]: quarters of the channels become the cells of a square."""
    batch, channels, height, width = x.shape
    cells = x.view(batch, SPREAD, SPREAD, channels // SPREAD**2, height, width).permute(0, 3, 4, 1, 5, 2)
    return cells.reshape(batch, channels // SPREAD**2, height * SPREAD, width * SPREAD)
