"""RAFT's large network (Teed and Deng, "Recurrent All-Pairs Field Transforms for Optical Flow", arXiv 2003.12039).

`B` batch, `H W` pixels (multiples of 8), `h w` cells of 8 pixels a side. Images are of -1..1, flows [B, 2, H, W] in
pixels: how far right and how far down. Module names are those of torchvision's files.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.layers.basic import Conv2d
from darkroom.engine.layers.frozen_norm import FrozenBatchNorm
from darkroom.engine.models.kinds.optical_flow.correlation import RADIUS, CorrelationPyramid

CELL_PX = 8
STAGES = ((64, 64, 1), (64, 96, 2), (96, 128, 2))  # of the encoders: channels before and after, stride
HIDDEN, CONTEXT = 128, 128
ENCODED = HIDDEN + CONTEXT
NUM_LEVELS = 4
CORRELATIONS = NUM_LEVELS * (2 * RADIUS + 1) ** 2
MASK_SCALE = 0.25  # of the weights by which flows are enlarged
NUM_UPDATES = 12


def _conv(
    before: int, after: int, size: int, *, stride: int = 1, norm: type[nn.Module] | None = None, is_linear: bool = False
) -> nn.Sequential:
    layers: list[nn.Module] = [Conv2d(before, after, size, stride=stride, padding=size // 2)]
    layers += [] if norm is None else [norm(after)]
    return nn.Sequential(*layers, *([] if is_linear else [nn.ReLU()]))


class ResidualBlock(nn.Module):
    """Two convolutions beside their input, which is projected where the size changes."""

    def __init__(self, before: int, after: int, stride: int, norm: type[nn.Module]) -> None:
        super().__init__()
        self.convnormrelu1 = _conv(before, after, 3, stride=stride, norm=norm)
        self.convnormrelu2 = _conv(after, after, 3, norm=norm)
        is_same = stride == 1
        self.downsample = (
            nn.Identity() if is_same else _conv(before, after, 1, stride=stride, norm=norm, is_linear=True)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.relu(self.downsample(x) + self.convnormrelu2(self.convnormrelu1(x)))


class Encoder(nn.Module):
    """Features [B, 256, h, w] of images [B, 3, H, W]."""

    def __init__(self, norm: type[nn.Module]) -> None:
        super().__init__()
        self.convnormrelu = _conv(3, STAGES[0][0], 7, stride=2, norm=norm)
        for index, (before, after, stride) in enumerate(STAGES, start=1):
            blocks = ResidualBlock(before, after, stride, norm), ResidualBlock(after, after, 1, norm)
            self.add_module(f"layer{index}", nn.Sequential(*blocks))
        self.conv = Conv2d(STAGES[-1][1], ENCODED, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.children():
            x = layer(x)
        return x


class MotionEncoder(nn.Module):
    """Features [B, 128, h, w] of a flow and of how well the frames correlate there."""

    def __init__(self) -> None:
        super().__init__()
        self.convcorr1 = _conv(CORRELATIONS, 256, 1)
        self.convcorr2 = _conv(256, 192, 3)
        self.convflow1 = _conv(2, 128, 7)
        self.convflow2 = _conv(128, 64, 3)
        self.conv = _conv(192 + 64, 128 - 2, 3)

    def forward(self, flow: torch.Tensor, correlations: torch.Tensor) -> torch.Tensor:
        both = (self.convcorr2(self.convcorr1(correlations)), self.convflow2(self.convflow1(flow)))
        return torch.cat((self.conv(torch.cat(both, dim=1)), flow), dim=1)


class ConvGru(nn.Module):
    """A gated recurrent unit whose products are convolutions along one side."""

    def __init__(self, size: tuple[int, int]) -> None:
        super().__init__()
        padding = (size[0] // 2, size[1] // 2)
        self.convz, self.convr, self.convq = (
            Conv2d(HIDDEN + CONTEXT + 128, HIDDEN, size, padding=padding) for _ in range(3)
        )

    def forward(self, hidden: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        both = torch.cat((hidden, x), dim=1)
        update, reset = torch.sigmoid(self.convz(both)), torch.sigmoid(self.convr(both))
        candidate = torch.tanh(self.convq(torch.cat((reset * hidden, x), dim=1)))
        return (1 - update) * hidden + update * candidate


class RecurrentBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convgru1, self.convgru2 = ConvGru((1, 5)), ConvGru((5, 1))

    def forward(self, hidden: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        hidden = self.convgru2(self.convgru1(hidden, x), x)
        return hidden


class FlowHead(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = Conv2d(HIDDEN, 256, 3, padding=1)
        self.conv2 = Conv2d(256, 2, 3, padding=1)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        change: torch.Tensor = self.conv2(functional.relu(self.conv1(hidden)))
        return change


class UpdateBlock(nn.Module):
    """One refinement: the new state, and what is added to the flow [B, 2, h, w]."""

    def __init__(self) -> None:
        super().__init__()
        self.motion_encoder = MotionEncoder()
        self.recurrent_block = RecurrentBlock()
        self.flow_head = FlowHead()

    def forward(
        self, hidden: torch.Tensor, context: torch.Tensor, correlations: torch.Tensor, flow: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        motion = self.motion_encoder(flow, correlations)
        hidden = self.recurrent_block(hidden, torch.cat((context, motion), dim=1))
        return hidden, self.flow_head(hidden)


class MaskPredictor(nn.Module):
    """Weights [B, 9 * 64, h, w] of the nine cells around, for each pixel of a cell."""

    def __init__(self) -> None:
        super().__init__()
        self.convrelu = _conv(HIDDEN, 256, 3)
        self.conv = Conv2d(256, 9 * CELL_PX**2, 1)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        weights: torch.Tensor = MASK_SCALE * self.conv(self.convrelu(hidden))
        return weights


class Raft(nn.Module):
    """The whole network: `forward(first, second)` is the flow [B, 2, H, W] from the first image to the second."""

    def __init__(self) -> None:
        super().__init__()
        self.feature_encoder = Encoder(nn.InstanceNorm2d)
        self.context_encoder = Encoder(FrozenBatchNorm)
        self.update_block = UpdateBlock()
        self.mask_predictor = MaskPredictor()

    def forward(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        of_first, of_second = self.feature_encoder(torch.cat((first, second))).chunk(2)
        pyramid = CorrelationPyramid(of_first, of_second, NUM_LEVELS)
        hidden, context = self.context_encoder(first).chunk(2, dim=1)
        hidden, context = torch.tanh(hidden), functional.relu(context)
        flow = first.new_zeros(first.shape[0], 2, *hidden.shape[2:])
        for _ in range(NUM_UPDATES):
            hidden, change = self.update_block(hidden, context, pyramid.around(flow), flow)
            flow = flow + change
        return _enlarged(flow, self.mask_predictor(hidden))


def _enlarged(flow: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Return a flow of cells [B, 2, h, w] as one of pixels: of each pixel a weighted mean of the nine cells around."""
    batch, _, height, width = flow.shape
    shares = weights.view(batch, 1, 9, CELL_PX, CELL_PX, height, width).softmax(dim=2)
    around = functional.unfold(CELL_PX * flow, 3, padding=1).view(batch, 2, 9, 1, 1, height, width)
    pixels = (shares * around).sum(dim=2)  # [B, 2, 8, 8, h, w]
    return pixels.permute(0, 1, 4, 2, 5, 3).reshape(batch, 2, height * CELL_PX, width * CELL_PX)
