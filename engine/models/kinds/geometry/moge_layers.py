"""Layers of MoGe's heads. `B` images, `C` channels, `h w` cells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.layers.basic import Conv2d, Linear
from darkroom.engine.layers.shapes import Shapes, count_children

CHANNELS_OF_A_GROUP = 32


def convolution(before: int, after: int, size: int = 3) -> Conv2d:
    """Return a convolution that continues images beyond their borders."""
    return Conv2d(before, after, size, padding=size // 2, padding_mode="replicate")


class ResidualBlock(nn.Module):
    """Two convolutions beside their input [B, C, h, w]; with norms unless `is_plain`."""

    def __init__(self, channels: int, hidden: int, *, is_plain: bool = False) -> None:
        super().__init__()
        groups = max(hidden // CHANNELS_OF_A_GROUP, 1)
        self.layers = nn.Sequential(
            nn.Identity() if is_plain else nn.GroupNorm(1, channels),
            nn.ReLU(),
            convolution(channels, hidden),
            nn.Identity() if is_plain else nn.GroupNorm(groups, hidden),
            nn.ReLU(),
            convolution(hidden, channels),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = x + self.layers(x)
        return out


def doubling(before: int, after: int, *, is_learned: bool = True) -> nn.Sequential:
    """Return layers that double the sides: by a transposed convolution if it is learned, else bilinearly."""
    if is_learned:
        return nn.Sequential(nn.ConvTranspose2d(before, after, 2, stride=2), convolution(after, after))
    return nn.Sequential(nn.Upsample(scale_factor=2, mode="bilinear"), convolution(before, after))


@dataclass(frozen=True, slots=True)
class StackConfig:
    """Configuration of a `ConvStack`, of each level: channels taken, within, returned (0: as within), and blocks."""

    taken: tuple[int, ...]
    within: tuple[int, ...]
    returned: tuple[int, ...]
    num_blocks: tuple[int, ...]
    is_learned: tuple[bool, ...]  # of the doublings between levels
    is_plain: bool

    @property
    def made(self) -> tuple[int, ...]:
        """Channels that each level returns."""
        return tuple(returned or within for returned, within in zip(self.returned, self.within, strict=True))


def stack_config(shapes: Shapes, prefix: str) -> StackConfig:
    """Return the configuration of the stack with these tensors. Raises LookupError for a missing one."""
    num_levels = count_children(shapes, f"{prefix}input_blocks")
    inputs = [shapes[f"{prefix}input_blocks.{level}.weight"] for level in range(num_levels)]
    outputs = [shapes.get(f"{prefix}output_blocks.{level}.weight", (0,)) for level in range(num_levels)]
    return StackConfig(
        taken=tuple(shape[1] for shape in inputs),
        within=tuple(shape[0] for shape in inputs),
        returned=tuple(shape[0] for shape in outputs),
        num_blocks=tuple(count_children(shapes, f"{prefix}res_blocks.{level}") for level in range(num_levels)),
        is_learned=tuple(f"{prefix}resamplers.{level}.0.weight" in shapes for level in range(num_levels - 1)),
        is_plain=f"{prefix}res_blocks.0.0.layers.0.weight" not in shapes,
    )


class ConvStack(nn.Module):
    """Levels from the coarsest to the finest, each of twice the sides, joined with what is given at that size."""

    def __init__(self, config: StackConfig) -> None:
        super().__init__()
        self.input_blocks = nn.ModuleList(
            convolution(taken, within, 1) for taken, within in zip(config.taken, config.within, strict=True)
        )
        self.resamplers = nn.ModuleList(
            doubling(before, after, is_learned=is_learned)
            for before, after, is_learned in zip(config.within, config.within[1:], config.is_learned, strict=False)
        )
        self.res_blocks = nn.ModuleList(
            nn.Sequential(*(ResidualBlock(within, within, is_plain=config.is_plain) for _ in range(count)))
            for within, count in zip(config.within, config.num_blocks, strict=True)
        )
        self.output_blocks = nn.ModuleList(
            convolution(within, returned, 1) if returned else nn.Identity()
            for within, returned in zip(config.within, config.returned, strict=True)
        )

    def forward(self, given: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Compute the levels of what is given for each, [B, C, h, w]."""
        found: list[torch.Tensor] = []
        x = self.res_blocks[0](self.input_blocks[0](given[0]))
        found.append(self.output_blocks[0](x))
        for level in range(1, len(self.res_blocks)):
            x = self.res_blocks[level](self.resamplers[level - 1](x) + self.input_blocks[level](given[level]))
            found.append(self.output_blocks[level](x))
        return found


def scale_layers(sizes: Sequence[int]) -> nn.Sequential:
    """Return linear layers of these sizes with rectifiers between them."""
    layers: list[nn.Module] = []
    for before, after in zip(sizes, sizes[1:], strict=False):
        layers += [Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def plane_of(height: int, width: int, aspect: float, like: torch.Tensor) -> torch.Tensor:
    """Return the place of each cell [2, h, w], right and down, in an image whose diagonal is 2."""
    diagonal = (1 + aspect**2) ** 0.5
    along = []
    for size, span in ((width, aspect / diagonal), (height, 1 / diagonal)):
        reach = span * (size - 1) / size
        along.append(torch.linspace(-reach, reach, size, dtype=like.dtype, device=like.device))
    return torch.stack((along[0].expand(height, width), along[1][:, None].expand(height, width)))


def with_plane(x: torch.Tensor, aspect: float) -> torch.Tensor:
    """Return [B, C, h, w] with the place of each cell as two more channels."""
    plane = plane_of(x.shape[2], x.shape[3], aspect, x)
    return torch.cat((x, plane.expand(len(x), -1, -1, -1)), dim=1)


def resized(x: torch.Tensor, sides: Sequence[int]) -> torch.Tensor:
    return functional.interpolate(x, size=tuple(sides), mode="bilinear")
