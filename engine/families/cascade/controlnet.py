"""ControlNets of Stable Cascade's stage C (Pernias et al. 2023, arXiv 2306.00637): edges, inpainting, super-resolution.

They see the image and neither the latent nor the time, so one result serves all steps. `B` batch, `H W` pixels,
`h w` latent cells, `C` channels of the image, `D` width of the stage. Module names are those of the original
checkpoints.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.families.cascade.efficientnet import LAST_CHANNELS, efficientnet_features
from darkroom.engine.layers.basic import Conv2d
from darkroom.engine.layers.shapes import Shapes, count_children

PIXELS_MARK, LATENTS_MARK = "backbone.0.0.weight", "backbone.0.weight"
PROJECTION_MARK = "projections.0.2.weight"
SLOPE = 0.2  # of the leaky rectifiers
NORM_EPSILON = 1e-5
CELL_PX = 32  # that the convolutional backbone makes one cell
CONTROLLED_BLOCKS = (0, 4, 8, 12, 51, 55, 59, 63)  # of the stage's 64 residual blocks, first to last


@dataclass(frozen=True, slots=True)
class LatentBackboneConfig:
    """Widths and depth of the backbone that reads latents in place of pixels."""

    hidden_channels: int = 16384
    channels: int = 1024
    num_blocks: int = 8


@dataclass(frozen=True, slots=True)
class CascadeControlConfig:
    """Configuration of a control. `latents` is None for one that reads pixels.

    `in_channels` of the image, `stage_channels` of the additions, `num_projections` of the controlled blocks.
    """

    in_channels: int
    stage_channels: int
    num_projections: int = len(CONTROLLED_BLOCKS)
    latents: LatentBackboneConfig | None = None


class ChannelNorm(nn.Module):
    """Layer norm of [B, C, h, w] over the channels, with a learned scale and shift."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.empty(channels)), nn.Parameter(torch.empty(channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        last = functional.layer_norm(x.permute(0, 2, 3, 1), self.weight.shape, self.weight, self.bias, NORM_EPSILON)
        return last.permute(0, 3, 1, 2)


class ControlBlock(nn.Module):
    """Two convolutions behind norms, with a residual connection."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for _ in range(2):
            layers += [ChannelNorm(channels), nn.GELU(), Conv2d(channels, channels, 3, padding=1)]
        self.blocks = nn.Sequential(*layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = x + self.blocks(x)
        return out


def _latent_backbone(in_channels: int, config: LatentBackboneConfig) -> nn.Sequential:
    return nn.Sequential(
        Conv2d(in_channels, config.hidden_channels, 1),
        nn.LeakyReLU(SLOPE),
        Conv2d(config.hidden_channels, config.channels, 1),
        *(ControlBlock(config.channels) for _ in range(config.num_blocks)),
        Conv2d(config.channels, LAST_CHANNELS, 1),
    )


def _projection(stage_channels: int) -> nn.Sequential:
    return nn.Sequential(
        Conv2d(LAST_CHANNELS, LAST_CHANNELS, 1, bias=False),
        nn.LeakyReLU(SLOPE),
        Conv2d(LAST_CHANNELS, stage_channels, 1, bias=False),
    )


class CascadeControl(nn.Module):
    """`forward(hint [B, C, H, W])` returns additions [B, D, h, w] to stage C's residual blocks, the last one first.

    `compression_ratio`: pixels of the hint per cell of the latent. `upscale_algorithm`: how an image is brought to
    that size.
    """

    def __init__(self, config: CascadeControlConfig) -> None:
        super().__init__()
        self.config = config
        self.input_channels = config.in_channels
        self.unshuffle_amount = 8
        if config.latents is None:
            self.compression_ratio, self.upscale_algorithm = CELL_PX, "bilinear"
            self.backbone = efficientnet_features(config.in_channels)
        else:
            self.compression_ratio, self.upscale_algorithm = 1, "nearest-exact"
            self.backbone = _latent_backbone(config.in_channels, config.latents)
        self.projections = nn.ModuleList(_projection(config.stage_channels) for _ in range(config.num_projections))

    def forward(self, hint: torch.Tensor) -> dict[str, list[torch.Tensor | None]]:
        features = self.backbone(hint)
        additions: list[torch.Tensor | None] = [None] * (CONTROLLED_BLOCKS[len(self.projections) - 1] + 1)
        for place, project in zip(CONTROLLED_BLOCKS, self.projections, strict=False):
            additions[place] = project(features)
        return {"input": additions[::-1]}


def fits(names: Collection[str]) -> bool:
    """Return True for the names of a control's tensors."""
    return PROJECTION_MARK in names and (PIXELS_MARK in names or LATENTS_MARK in names)


def cascade_control(shapes: Shapes) -> CascadeControl:
    """Return the control whose tensors have these shapes."""
    latents = None
    if LATENTS_MARK in shapes:
        # Beside the blocks: two convolutions with an activation between them, and a convolution at the end.
        num_blocks = count_children(shapes, "backbone") - 4
        latents = LatentBackboneConfig(shapes[LATENTS_MARK][0], shapes["backbone.2.weight"][0], num_blocks)
    return CascadeControl(
        CascadeControlConfig(
            in_channels=shapes[PIXELS_MARK if latents is None else LATENTS_MARK][1],
            stage_channels=shapes[PROJECTION_MARK][0],
            num_projections=count_children(shapes, "projections"),
            latents=latents,
        )
    )
