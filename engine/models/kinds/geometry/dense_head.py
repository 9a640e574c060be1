"""Heads of Depth Anything 3 (DPT, Ranftl et al. 2021, arXiv 2103.13413): features of four layers to values of pixels.

`B` views, `H W` pixels, `h w` patches, `C` channels. Module names are those of the published files.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.layers.basic import Conv2d

POSITION_SCALE, POSITION_BASE = 0.1, 100.0
LAST_CHANNELS = 32
RAY_VALUES = 6
LEVELS = (1, 2, 3, 4)  # the finest first


@dataclass(frozen=True, slots=True)
class HeadConfig:
    """Configuration; `is_dual`: there is a second head of rays. `num_out`: 1 the depth, 2 with its confidence."""

    in_channels: int
    level_channels: tuple[int, ...]
    channels: int
    num_out: int
    is_dual: bool
    has_sky: bool


class Dense(NamedTuple):
    """Values of pixels [B, H, W]; rays [B, h', w', 6] and their confidence [B, h', w'] at a size of their own."""

    depth: torch.Tensor
    confidence: torch.Tensor | None = None
    sky: torch.Tensor | None = None
    rays: torch.Tensor | None = None
    ray_confidence: torch.Tensor | None = None


class ResidualUnit(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = (Conv2d(channels, channels, 3, padding=1) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = x + self.conv2(functional.relu(self.conv1(functional.relu(x))))
        return out


class FusionBlock(nn.Module):
    """A level joined with the coarser ones, at the size of the next finer level."""

    def __init__(self, channels: int, *, is_coarsest: bool) -> None:
        super().__init__()
        self.resConfUnit1 = None if is_coarsest else ResidualUnit(channels)  # noqa: N803
        self.resConfUnit2 = ResidualUnit(channels)
        self.out_conv = Conv2d(channels, channels, 1)

    def forward(self, level: torch.Tensor, coarser: torch.Tensor | None, sides: torch.Size) -> torch.Tensor:
        if coarser is not None and self.resConfUnit1 is not None:
            level = coarser + self.resConfUnit1(level)
        out: torch.Tensor = self.out_conv(_resized(self.resConfUnit2(level), sides))
        return out


class ChannelNorm(nn.LayerNorm):
    """Normalisation of each pixel of [B, C, H, W]."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.movedim(1, -1)).movedim(-1, 1)


class Layers(nn.Module):
    """The layers behind the features of each level, and those of the outputs."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        channels, half = config.channels, config.channels // 2
        for level, level_channels in zip(LEVELS, config.level_channels, strict=True):
            self.add_module(f"layer{level}_rn", Conv2d(level_channels, channels, 3, padding=1, bias=False))
            for ending in ("", "_aux") if config.is_dual else ("",):
                self.add_module(f"refinenet{level}{ending}", FusionBlock(channels, is_coarsest=level == LEVELS[-1]))
        self.output_conv1 = Conv2d(channels, half, 3, padding=1)
        self.output_conv2 = _output(half, config.num_out)
        if config.has_sky:
            self.sky_output_conv2 = _output(half, 1)
        if config.is_dual:
            self.output_conv1_aux = nn.ModuleList(_stack(channels) for _ in LEVELS)
            self.output_conv2_aux = nn.ModuleList(_normed_output(half) for _ in LEVELS)

    def fused(self, levels: list[torch.Tensor], ending: str) -> torch.Tensor:
        """Join levels [B, C, h, w], the finest first, at twice the size of the finest."""
        x: torch.Tensor | None = None
        for level in reversed(LEVELS):
            here = levels[level - 1]
            sides = levels[level - 2].shape[2:] if level > 1 else torch.Size(2 * side for side in here.shape[2:])
            x = self.get_submodule(f"refinenet{level}{ending}")(here, x, sides)
        assert x is not None
        return x


class DenseHead(nn.Module):
    """The whole head, of patches of four layers of the encoder, the earliest first."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.config = config
        first, second, _, last = config.level_channels
        self.norm = nn.LayerNorm(config.in_channels) if config.is_dual else nn.Identity()
        self.projects = nn.ModuleList(Conv2d(config.in_channels, count, 1) for count in config.level_channels)
        self.resize_layers = nn.ModuleList(
            (
                nn.ConvTranspose2d(first, first, 4, stride=4),
                nn.ConvTranspose2d(second, second, 2, stride=2),
                nn.Identity(),
                Conv2d(last, last, 3, stride=2, padding=1),
            )
        )
        self.scratch = Layers(config)

    def forward(self, patches: list[torch.Tensor], sides: torch.Size, *, with_rays: bool = False) -> Dense:
        """Compute values of pixels of views with these sides from their patches, each [B, h * w, C]."""
        ratio = sides[1] / sides[0]
        levels = self._levels(patches, sides, ratio)
        x = _resized(self.scratch.output_conv1(self.scratch.fused(levels, "")), sides)
        x = self._with_positions(x, ratio)
        made = self.scratch.output_conv2(x)
        confidence = made[:, -1].exp() + 1 if self.config.num_out > 1 else None
        sky = functional.relu(self.scratch.sky_output_conv2(x))[:, 0] if self.config.has_sky else None
        dense = Dense(made[:, 0].exp(), confidence, sky)
        if not (with_rays and self.config.is_dual):
            return dense
        aux = self.scratch.output_conv1_aux[-1](self.scratch.fused(levels, "_aux"))
        rays = self.scratch.output_conv2_aux[-1](self._with_positions(aux, ratio)).movedim(1, -1)
        return dense._replace(rays=rays[..., :RAY_VALUES], ray_confidence=rays[..., RAY_VALUES].exp() + 1)

    def _levels(self, patches: list[torch.Tensor], sides: torch.Size, ratio: float) -> list[torch.Tensor]:
        num_patches = patches[0].shape[1]
        height = round((num_patches * sides[0] / sides[1]) ** 0.5)
        levels = []
        for level, tokens, project, resize in zip(LEVELS, patches, self.projects, self.resize_layers, strict=True):
            cells = self.norm(tokens).mT.unflatten(-1, (height, num_patches // height))
            cells = resize(self._with_positions(project(cells), ratio))
            levels.append(self.scratch.get_submodule(f"layer{level}_rn")(cells))
        return levels

    def _with_positions(self, x: torch.Tensor, ratio: float) -> torch.Tensor:
        return x + POSITION_SCALE * _positions(x, ratio) if self.config.is_dual else x


def _output(channels: int, num_out: int) -> nn.Sequential:
    return nn.Sequential(Conv2d(channels, LAST_CHANNELS, 3, padding=1), nn.ReLU(), Conv2d(LAST_CHANNELS, num_out, 1))


def _normed_output(channels: int) -> nn.Sequential:
    """Return the last layers of rays; identities keep the numbers that the layers have in files."""
    first, last = Conv2d(channels, LAST_CHANNELS, 3, padding=1), Conv2d(LAST_CHANNELS, RAY_VALUES + 1, 1)
    return nn.Sequential(first, nn.Identity(), ChannelNorm(LAST_CHANNELS), nn.Identity(), nn.ReLU(), last)


def _stack(channels: int) -> nn.Sequential:
    counts = (channels, channels // 2) * 3
    return nn.Sequential(
        *(Conv2d(before, after, 3, padding=1) for before, after in zip(counts, counts[1:], strict=False))
    )


def _resized(x: torch.Tensor, sides: torch.Size) -> torch.Tensor:
    return functional.interpolate(x, size=tuple(sides), mode="bilinear", align_corners=True)


def _positions(x: torch.Tensor, ratio: float) -> torch.Tensor:
    """Return sines and cosines [C, h, w] of the place of each cell in a view whose width is `ratio` of its height."""
    channels, (height, width) = x.shape[1], x.shape[2:]
    diagonal = (ratio**2 + 1) ** 0.5
    steps = 1 / POSITION_BASE ** (torch.arange(channels // 4, device=x.device, dtype=torch.float32) / (channels / 4))
    along = []
    for size, span in ((width, ratio / diagonal), (height, 1 / diagonal)):
        reach = span * (size - 1) / size
        angles = torch.linspace(-reach, reach, size, device=x.device, dtype=x.dtype)[:, None] * steps
        along.append(torch.cat((angles.sin(), angles.cos()), dim=1).T)  # [C / 2, size]
    columns, rows = along
    both = (columns[:, None].expand(-1, height, -1), rows[:, :, None].expand(-1, -1, width))
    return torch.cat(both).to(x)
