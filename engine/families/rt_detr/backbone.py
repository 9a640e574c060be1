"""HGNetv2, the image encoder of RT-DETR v4: convolutions whose inputs are all kept and joined in each block.

`B` images, `C` channels, `H W` pixels, `h w` cells of a level. Names of modules are those of the published files.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.layers.basic import Conv2d
from darkroom.engine.layers.frozen_norm import FrozenBatchNorm
from darkroom.engine.layers.shapes import Shapes, count_children

IMAGE_CHANNELS = 3


@dataclass(frozen=True, slots=True)
class StageConfig:
    """A stage: channels at its input, within its layers, and at its output, and its number of blocks and of layers.

    Light layers are a convolution of single pixels and one of single channels, of `kernel_size`.
    """

    in_channels: int
    mid_channels: int
    out_channels: int
    num_blocks: int
    num_layers: int
    kernel_size: int
    is_light: bool
    is_halved: bool


@dataclass(frozen=True, slots=True)
class BackboneConfig:
    """Channels within the stem, and the stages."""

    stem_channels: int
    stages: tuple[StageConfig, ...]


def backbone_config(shapes: Shapes, prefix: str) -> BackboneConfig:
    """Return the configuration of the encoder below `prefix`. Raises LookupError for a missing tensor."""
    channels = shapes[f"{prefix}stem.stem4.conv.weight"][0]
    stages = []
    for index in range(count_children(shapes, f"{prefix}stages")):
        stages.append(_stage(shapes, f"{prefix}stages.{index}", channels))
        channels = stages[-1].out_channels
    return BackboneConfig(shapes[f"{prefix}stem.stem1.conv.weight"][0], tuple(stages))


def _stage(shapes: Shapes, stage: str, in_channels: int) -> StageConfig:
    layer = f"{stage}.blocks.0.layers.0"
    is_light = f"{layer}.conv1.conv.weight" in shapes
    kernel = shapes[f"{layer}.conv2.conv.weight" if is_light else f"{layer}.conv.weight"]
    return StageConfig(
        in_channels=in_channels,
        mid_channels=kernel[0],
        out_channels=shapes[f"{stage}.blocks.0.aggregation.1.conv.weight"][0],
        num_blocks=count_children(shapes, f"{stage}.blocks"),
        num_layers=count_children(shapes, f"{stage}.blocks.0.layers"),
        kernel_size=kernel[-1],
        is_light=is_light,
        is_halved=f"{stage}.downsample.conv.weight" in shapes,
    )


class NormedConv(nn.Module):
    """A convolution, batch norm, and ReLU where wanted."""

    def __init__(
        self, in_channels: int, out_channels: int, size: int, *, stride: int = 1, groups: int = 1, has_relu: bool = True
    ) -> None:
        super().__init__()
        padding = (size - 1) // 2
        self.conv = Conv2d(in_channels, out_channels, size, stride, padding, groups=groups, bias=False)
        self.bn = FrozenBatchNorm(out_channels)
        self.has_relu = has_relu

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.bn(self.conv(x))
        return functional.relu(out) if self.has_relu else out


class LightConv(nn.Module):
    def __init__(self, in_channels: int, out_channels: int, size: int) -> None:
        super().__init__()
        self.conv1 = NormedConv(in_channels, out_channels, 1, has_relu=False)
        self.conv2 = NormedConv(out_channels, out_channels, size, groups=out_channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.conv2(self.conv1(x))
        return out


class Stem(nn.Module):
    """Images [B, 3, H, W] -> [B, C, H / 4, W / 4], by convolutions and by the largest of their pixels."""

    def __init__(self, mid_channels: int, out_channels: int) -> None:
        super().__init__()
        self.stem1 = NormedConv(IMAGE_CHANNELS, mid_channels, 3, stride=2)
        self.stem2a = NormedConv(mid_channels, mid_channels // 2, 2)
        self.stem2b = NormedConv(mid_channels // 2, mid_channels, 2)
        self.stem3 = NormedConv(2 * mid_channels, mid_channels, 3, stride=2)
        self.stem4 = NormedConv(mid_channels, out_channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = _padded(self.stem1(x))
        convolved = self.stem2b(_padded(self.stem2a(x)))
        largest = functional.max_pool2d(x, 2, stride=1)
        out: torch.Tensor = self.stem4(self.stem3(torch.cat((largest, convolved), dim=1)))
        return out


def _padded(x: torch.Tensor) -> torch.Tensor:
    """Return [B, C, H, W] with a row of zeros below and a column at the right, for kernels of two pixels."""
    return functional.pad(x, (0, 1, 0, 1))


class Block(nn.Module):
    def __init__(self, in_channels: int, config: StageConfig, *, is_residual: bool) -> None:
        super().__init__()
        self.is_residual = is_residual
        made = LightConv if config.is_light else NormedConv
        sizes = (in_channels, *(config.mid_channels,) * (config.num_layers - 1))
        self.layers = nn.ModuleList(made(size, config.mid_channels, config.kernel_size) for size in sizes)
        joined = in_channels + config.num_layers * config.mid_channels
        half = config.out_channels // 2
        self.aggregation = nn.Sequential(NormedConv(joined, half, 1), NormedConv(half, config.out_channels, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outputs = [x]
        for layer in self.layers:
            outputs.append(layer(outputs[-1]))
        out: torch.Tensor = self.aggregation(torch.cat(outputs, dim=1))
        return out + x if self.is_residual else out


class Stage(nn.Module):
    def __init__(self, config: StageConfig) -> None:
        super().__init__()
        channels = config.in_channels
        if config.is_halved:
            self.downsample = NormedConv(channels, channels, 3, stride=2, groups=channels, has_relu=False)
        self.is_halved = config.is_halved
        sizes = (channels, *(config.out_channels,) * (config.num_blocks - 1))
        self.blocks = nn.Sequential(*(Block(size, config, is_residual=index > 0) for index, size in enumerate(sizes)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.blocks(self.downsample(x) if self.is_halved else x)
        return out


class HGNetv2(nn.Module):
    def __init__(self, config: BackboneConfig) -> None:
        super().__init__()
        self.stem = Stem(config.stem_channels, config.stages[0].in_channels)
        self.stages = nn.ModuleList(Stage(stage) for stage in config.stages)

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        """Return the levels [B, C, h, w] of all stages but the first."""
        x = self.stem(x)
        levels = []
        for stage in self.stages:
            x = stage(x)
            levels.append(x)
        return levels[1:]
