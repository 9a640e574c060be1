"""SDPose (Liang et al. 2025, arXiv 2509.24980): Lotus's UNet with a head that finds a person's points in its features.

`B` images, `C` channels, `h w` latent cells, `K` points. A heatmap has two cells for each latent cell.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import nn

from darkroom.engine.families.base import NotRecognised
from darkroom.engine.layers.basic import Conv2d
from darkroom.engine.layers.shapes import Shapes, expect
from darkroom.engine.layers.unet import UnetConfig, UnetModel
from darkroom.engine.layers.unet_layers import ResSpec

PREFIX = "heatmap_head."
SIGNATURE = PREFIX + "conv_layers.0.weight"
NUM_POINTS = 133  # of COCO-WholeBody
DECONV_KERNEL = 4


@dataclass(frozen=True, slots=True)
class HeatmapConfig:
    """Channels of the features, behind the transposed convolution, and behind the convolution of `kernel_size`."""

    in_channels: int = 640
    enlarged_channels: int = 640
    hidden_channels: int = 640
    kernel_size: int = 1
    final_kernel_size: int = 1


@dataclass(frozen=True, slots=True)
class PoseUnetConfig(UnetConfig):
    """Configuration of a UNet with a head."""

    heatmap: HeatmapConfig = HeatmapConfig()


def with_head(config: UnetConfig, shapes: Shapes) -> UnetConfig:
    """Return the configuration of a UNet with the head that these shapes have; the same without one.

    Raises `NotRecognised` for another head than SDPose's, and for one that reads features which the UNet does not have;
    LookupError for a missing tensor.
    """
    if SIGNATURE not in shapes:
        return config
    head = _heatmap_config(shapes)
    if head.in_channels not in _feature_channels(config):
        raise NotRecognised(f"SDPose's network of {head.in_channels} features, which its output blocks do not have")
    return PoseUnetConfig(**{item.name: getattr(config, item.name) for item in fields(config)}, heatmap=head)


def _heatmap_config(shapes: Shapes) -> HeatmapConfig:
    enlarging, hidden, final = (
        shapes[f"{PREFIX}{name}.weight"] for name in ("deconv_layers.0", "conv_layers.0", "final_layer")
    )
    try:
        expect("points", final[0], NUM_POINTS)
        expect("sides of a kernel", enlarging[2:], (DECONV_KERNEL, DECONV_KERNEL))
    except ValueError as error:
        raise NotRecognised(f"SDPose's network of other {error}") from error
    return HeatmapConfig(enlarging[0], enlarging[1], hidden[0], hidden[-1], final[-1])


def _feature_channels(config: UnetConfig) -> set[int]:
    """Return the channels that output blocks get from the blocks before them."""
    blocks = (config.middle_block, *config.output_blocks[:-1])
    return {spec.out_channels for block in blocks for spec in block if isinstance(spec, ResSpec)}


class HeatmapHead(nn.Module):
    def __init__(self, config: HeatmapConfig) -> None:
        super().__init__()
        self.in_channels = config.in_channels
        enlarged, hidden = config.enlarged_channels, config.hidden_channels
        self.deconv_layers = nn.Sequential(
            nn.ConvTranspose2d(config.in_channels, enlarged, DECONV_KERNEL, stride=2, padding=1, bias=False),
            nn.InstanceNorm2d(enlarged),
            nn.SiLU(),
        )
        self.conv_layers = nn.Sequential(
            Conv2d(enlarged, hidden, config.kernel_size, padding=config.kernel_size // 2),
            nn.InstanceNorm2d(hidden),
            nn.SiLU(),
        )
        self.final_layer = Conv2d(hidden, NUM_POINTS, config.final_kernel_size, padding=config.final_kernel_size // 2)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Return heatmaps [B, K, 2h, 2w] of features [B, C, h, w]."""
        heatmaps: torch.Tensor = self.final_layer(self.conv_layers(self.deconv_layers(features)))
        return heatmaps


class PoseUnet(UnetModel):
    """A UNet whose output blocks' features the head reads. It denoises as one without it."""

    config: PoseUnetConfig

    def __init__(self, config: PoseUnetConfig) -> None:
        super().__init__(config)
        self.heatmap_head = HeatmapHead(config.heatmap)


def build_unet(config: UnetConfig) -> UnetModel:
    """Build a UNet, with the head if the configuration has one."""
    return PoseUnet(config) if isinstance(config, PoseUnetConfig) else UnetModel(config)
