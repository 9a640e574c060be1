"""The layers of EfficientNetV2-S that see an image (Tan and Le 2021, arXiv 2104.00298), as in the torchvision library.

`B` batch, `C` channels, `H W` pixels. Module names are those of torchvision's files (`features`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.layers.basic import Conv2d
from darkroom.engine.layers.frozen_norm import FrozenBatchNorm

NORM_EPSILON = 1e-3
FIRST_CHANNELS, LAST_CHANNELS = 24, 1280


@dataclass(frozen=True, slots=True)
class EfficientStage:
    """Blocks of one width. `is_fused`: one convolution in place of a wide one and one of each channel."""

    is_fused: bool
    expansion: int
    stride: int
    channels: int
    num_blocks: int


STAGES = (
    EfficientStage(True, 1, 1, 24, 2),
    EfficientStage(True, 4, 2, 48, 4),
    EfficientStage(True, 4, 2, 64, 4),
    EfficientStage(False, 4, 2, 128, 6),
    EfficientStage(False, 6, 1, 160, 9),
    EfficientStage(False, 6, 2, 256, 15),
)


def _conv(
    in_channels: int, out_channels: int, kernel: int, stride: int = 1, *, groups: int = 1, is_active: bool = True
) -> nn.Sequential:
    layers: list[nn.Module] = [
        Conv2d(in_channels, out_channels, kernel, stride, padding=kernel // 2, groups=groups, bias=False),
        FrozenBatchNorm(out_channels, NORM_EPSILON),
    ]
    return nn.Sequential(*layers, *([nn.SiLU()] if is_active else []))


class SqueezeExcitation(nn.Module):
    """A scale of each channel by what the whole image has in it (Hu et al. 2017, arXiv 1709.01507)."""

    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = Conv2d(channels, squeezed, 1), Conv2d(squeezed, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        whole = functional.adaptive_avg_pool2d(x, 1)
        return x * torch.sigmoid(self.fc2(functional.silu(self.fc1(whole))))


class EfficientBlock(nn.Module):
    def __init__(self, stage: EfficientStage, in_channels: int, stride: int) -> None:
        super().__init__()
        wide = in_channels * stage.expansion
        if stage.is_fused and stage.expansion == 1:
            layers: list[nn.Module] = [_conv(in_channels, stage.channels, 3, stride)]
        elif stage.is_fused:
            layers = [_conv(in_channels, wide, 3, stride), _conv(wide, stage.channels, 1, is_active=False)]
        else:
            layers = [
                _conv(in_channels, wide, 1),
                _conv(wide, wide, 3, stride, groups=wide),
                SqueezeExcitation(wide, in_channels // 4),
                _conv(wide, stage.channels, 1, is_active=False),
            ]
        self.block = nn.Sequential(*layers)
        self.has_skip = stride == 1 and in_channels == stage.channels

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.block(x)
        return x + out if self.has_skip else out


def efficientnet_features(in_channels: int = 3) -> nn.Sequential:
    """Build the layers, [B, in_channels, H, W] -> [B, 1280, H/32, W/32]."""
    layers: list[nn.Module] = [_conv(in_channels, FIRST_CHANNELS, 3, 2)]
    channels = FIRST_CHANNELS
    for stage in STAGES:
        blocks: list[nn.Module] = []
        for index in range(stage.num_blocks):
            blocks.append(EfficientBlock(stage, channels, stage.stride if index == 0 else 1))
            channels = stage.channels
        layers.append(nn.Sequential(*blocks))
    return nn.Sequential(*layers, _conv(channels, LAST_CHANNELS, 1))
