"""MoGe: points in space of the pixels of one image (Wang et al., arXiv 2410.19115; version 2: arXiv 2507.02546).

`B` images, `H W` pixels, values 0..1. Points are right, down and ahead of the camera, up to a move ahead and, but for
version 2's `scale`, a scale.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.layers.dinov2 import Dinov2Config, dinov2_config
from darkroom.engine.layers.shapes import Shapes, count_children, expect
from darkroom.engine.models.kinds.geometry.image_encoder import ImageEncoder
from darkroom.engine.models.kinds.geometry.moge_layers import (
    ConvStack,
    ResidualBlock,
    StackConfig,
    convolution,
    doubling,
    plane_of,
    resized,
    scale_layers,
    stack_config,
    with_plane,
)

PATCH_PX = 14
NUM_FEATURES = 4  # layers whose features the heads take
NUM_LEVELS = 5  # of version 2's pyramid
LAST_CHANNELS = 32
OUTPUTS = (3, 1)  # of version 1: points and mask


class Geometry(NamedTuple):
    """Estimate of a network: points [B, H, W, 3]; mask [B, H, W], over 0.5 where points are valid; version 2's rest."""

    points: torch.Tensor
    mask: torch.Tensor
    normal: torch.Tensor | None = None  # [B, H, W, 3]
    scale: torch.Tensor | None = None  # [B], to metres


@dataclass(frozen=True, slots=True)
class MogeV1Config:
    """Configuration: the encoder; channels that features are projected to, of each doubling, and its blocks."""

    image: Dinov2Config
    projected: int
    channels: tuple[int, ...]
    num_blocks: int
    hidden_multiple: int


@dataclass(frozen=True, slots=True)
class MogeV2Config:
    """Configuration: the encoder, channels of its features, the stacks, and the sizes of the scale's layers."""

    image: Dinov2Config
    projected: int
    neck: StackConfig
    points: StackConfig
    mask: StackConfig
    normal: StackConfig | None
    scale_sizes: tuple[int, ...]


def moge_config(shapes: Shapes) -> MogeV1Config | MogeV2Config:
    """Return the configuration of the network with these tensors.

    Raises LookupError for a missing one, and ValueError for sizes that do not fit together.
    """
    config = _second_config(shapes) if "encoder.output_projections.0.weight" in shapes else _first_config(shapes)
    expect("sides of a patch", config.image.patch_px, PATCH_PX)
    if config.image.num_layers < NUM_FEATURES:
        raise ValueError(f"layers of the encoder: got {config.image.num_layers}, expected at least {NUM_FEATURES}")
    return config


def _first_config(shapes: Shapes) -> MogeV1Config:
    blocks = "head.upsample_blocks"
    channels = tuple(shapes[f"{blocks}.{index}.0.0.weight"][1] for index in range(count_children(shapes, blocks)))
    return MogeV1Config(
        image=dinov2_config(_below(shapes, "backbone.")),
        projected=shapes["head.projects.0.weight"][0],
        channels=channels,
        num_blocks=count_children(shapes, f"{blocks}.0") - 1,
        hidden_multiple=max(shapes[f"{blocks}.0.1.layers.2.weight"][0] // channels[0], 1),
    )


def _second_config(shapes: Shapes) -> MogeV2Config:
    layers = range(0, count_children(shapes, "scale_head"), 2)
    has_normal = any(name.startswith("normal_head.") for name in shapes)
    config = MogeV2Config(
        image=dinov2_config(_below(shapes, "encoder.backbone.")),
        projected=shapes["encoder.output_projections.0.weight"][0],
        neck=stack_config(shapes, "neck."),
        points=stack_config(shapes, "points_head."),
        mask=stack_config(shapes, "mask_head."),
        normal=stack_config(shapes, "normal_head.") if has_normal else None,
        scale_sizes=(
            shapes["scale_head.0.weight"][1],
            *(shapes[f"scale_head.{index}.weight"][0] for index in layers),
        ),
    )
    _check(config)
    return config


def _check(config: MogeV2Config) -> None:
    """Raise ValueError for parts that do not fit one another."""
    neck = config.neck
    num_levels = len(neck.within)
    expect("levels of the neck", num_levels, NUM_LEVELS)
    expect("channels that the neck takes", neck.taken, (config.projected + 2, *(2,) * (num_levels - 1)))
    for name, head, count in (("points", config.points, 3), ("mask", config.mask, 1), ("normals", config.normal, 3)):
        if head is not None:
            expect(f"channels that the head of {name} takes", head.taken, neck.made[: len(head.taken)])
            expect(f"values of {name}", head.made[-1], count)
    expect("sizes of the scale's layers", (config.scale_sizes[0], config.scale_sizes[-1]), (config.image.width, 1))


def _below(shapes: Shapes, prefix: str) -> Shapes:
    return {name.removeprefix(prefix): shape for name, shape in shapes.items() if name.startswith(prefix)}


class HeadV1(nn.Module):
    """Points [B, 3, H, W] and mask [B, 1, H, W] of four features of an image."""

    def __init__(self, config: MogeV1Config) -> None:
        super().__init__()
        self.projects = nn.ModuleList(convolution(config.image.width, config.projected, 1) for _ in range(NUM_FEATURES))
        self.upsample_blocks = nn.ModuleList(
            nn.Sequential(
                doubling(before + 2, after),
                *(ResidualBlock(after, after * config.hidden_multiple) for _ in range(config.num_blocks)),
            )
            for before, after in zip((config.projected, *config.channels), config.channels, strict=False)
        )
        self.output_block = nn.ModuleList(
            nn.Sequential(
                convolution(config.channels[-1] + 2, LAST_CHANNELS), nn.ReLU(), convolution(LAST_CHANNELS, count, 1)
            )
            for count in OUTPUTS
        )

    def forward(self, features: list[torch.Tensor], sides: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        cells, aspect = [side // PATCH_PX for side in sides], sides[1] / sides[0]
        x = _projected(features, self.projects, cells)
        for block in self.upsample_blocks:
            x = block(with_plane(x, aspect))
        x = with_plane(resized(x, sides), aspect)
        points, mask = (block(x) for block in self.output_block)
        return points, mask


class MogeV1(nn.Module):
    """The first version."""

    most_tokens = 2500
    has_scale = False

    def __init__(self, config: MogeV1Config) -> None:
        super().__init__()
        self.config = config
        self.backbone = ImageEncoder(config.image)
        self.head = HeadV1(config)

    def cells(self, height: int, width: int, num_tokens: int) -> tuple[int, int]:
        """Return rows and columns of patches that an image is seen in."""
        rows, columns = self._seen_sides(height, width, num_tokens)
        return rows // PATCH_PX, columns // PATCH_PX

    def _seen_sides(self, height: int, width: int, num_tokens: int) -> tuple[int, int]:
        scale = (num_tokens * PATCH_PX**2 / (height * width)) ** 0.5
        return int(height * scale), int(width * scale)

    def forward(self, images: torch.Tensor, num_tokens: int) -> Geometry:
        """Estimate images [B, 3, H, W], seen in about `num_tokens` patches."""
        sides = images.shape[2:]
        seen = self._seen_sides(sides[0], sides[1], num_tokens)
        pixels = functional.interpolate(images, seen, mode="bicubic", antialias=True)
        whole = tuple(side // PATCH_PX * PATCH_PX for side in seen)
        patches = functional.interpolate(normalized(pixels, self.config.image), whole, mode="bilinear", antialias=True)
        last = self.config.image.num_layers
        features = self.backbone(patches, range(last - NUM_FEATURES, last))
        points, mask = self.head([item for item, _ in features], seen)
        return Geometry(unfolded(resized(points, sides)), resized(mask, sides)[:, 0])


class EncoderV2(nn.Module):
    """Features [B, C, h, w] of images, and the image's token [B, D]."""

    def __init__(self, config: MogeV2Config) -> None:
        super().__init__()
        self.backbone = ImageEncoder(config.image)
        self.image = config.image
        self.step = config.image.num_layers // NUM_FEATURES
        self.output_projections = nn.ModuleList(
            convolution(config.image.width, config.projected, 1) for _ in range(NUM_FEATURES)
        )

    def forward(self, images: torch.Tensor, cells: tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor]:
        sides = tuple(count * PATCH_PX for count in cells)
        resized_images = functional.interpolate(images, sides, mode="bilinear", antialias=True)
        pixels = normalized(resized_images, self.image)
        layers = [self.step * (index + 1) - 1 for index in range(NUM_FEATURES)]
        features = self.backbone(pixels, layers)
        return _projected([item for item, _ in features], self.output_projections, cells), features[-1][1]


class MogeV2(nn.Module):
    """The second version."""

    most_tokens = 3600
    has_scale = True

    def __init__(self, config: MogeV2Config) -> None:
        super().__init__()
        self.config = config
        self.encoder = EncoderV2(config)
        self.neck = ConvStack(config.neck)
        self.points_head, self.mask_head = ConvStack(config.points), ConvStack(config.mask)
        self.normal_head = None if config.normal is None else ConvStack(config.normal)
        self.scale_head = scale_layers(config.scale_sizes)

    def cells(self, height: int, width: int, num_tokens: int) -> tuple[int, int]:
        """Return rows and columns of patches that an image is seen in."""
        aspect = width / height
        return round((num_tokens / aspect) ** 0.5), round((num_tokens * aspect) ** 0.5)

    def forward(self, images: torch.Tensor, num_tokens: int) -> Geometry:
        """Estimate images [B, 3, H, W], seen in about `num_tokens` patches."""
        sides = images.shape[2:]
        cells, aspect = self.cells(sides[0], sides[1], num_tokens), sides[1] / sides[0]
        features, token = self.encoder(images, cells)
        planes = [plane_of(cells[0] << level, cells[1] << level, aspect, images) for level in range(NUM_LEVELS)]
        levels = [plane.expand(len(images), -1, -1, -1) for plane in planes]
        levels[0] = torch.cat((features, levels[0]), dim=1)
        joined = self.neck(levels)
        points = unfolded(resized(self.points_head(joined)[-1], sides))
        mask = torch.sigmoid(resized(self.mask_head(joined)[-1], sides)[:, 0])
        scale = self.scale_head(token)[:, 0].exp()
        if self.normal_head is None:
            return Geometry(points, mask, scale=scale)
        normal = resized(self.normal_head(joined)[-1], sides).movedim(1, -1)
        return Geometry(points, mask, functional.normalize(normal, dim=-1), scale)


def normalized(images: torch.Tensor, encoder: Dinov2Config) -> torch.Tensor:
    """Return images [B, 3, H, W] of 0..1 with the mean and deviation of the encoder's training."""
    both = (encoder.mean, encoder.deviation)
    mean, deviation = (torch.tensor(values).to(images).view(-1, 1, 1) for values in both)
    return (images - mean) / deviation


def unfolded(points: torch.Tensor) -> torch.Tensor:
    """Return points [B, H, W, 3] of the output of a network [B, 3, H, W]: directions, and the logarithm of depth."""
    directions, depth = points[:, :2], points[:, 2:].exp()
    return torch.cat((directions * depth, depth), dim=1).movedim(1, -1)


def _projected(features: list[torch.Tensor], layers: nn.ModuleList, cells: Sequence[int]) -> torch.Tensor:
    """Return the sum of features [B, T, D], each by its layer, as cells [B, C, h, w]."""
    maps = (item.mT.reshape(len(item), -1, *cells) for item in features)
    return torch.stack([layer(item) for layer, item in zip(layers, maps, strict=True)]).sum(dim=0)
