"""The networks of Stable Cascade's stages C and B (Pernias et al. 2023, arXiv 2306.00637), of any width and depth.

Stage C draws a small latent from a prompt, stage B from that one the latent of the autoencoder (stage A). `B` batch,
`h w` latent cells, `T` tokens, `P` images, `D` width of an embedding.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.families.cascade.layers import EPSILON as NORM_EPSILON
from darkroom.engine.families.cascade.layers import (
    CascadeAttnBlock,
    CascadeResBlock,
    CascadeTimestepBlock,
    PlainNorm,
    number_embedding,
)
from darkroom.engine.layers.basic import Conv2d, Linear
from darkroom.engine.layers.shapes import Shapes, count_children
from darkroom.engine.layers.unet_layers import Options

BlockKind = Literal["residual", "time", "attention"]
PREVIEW_PX = 8  # a side of the image that stage B may be shown; it is black here
LAST = "clf.1.weight"  # of both stages
TEXT = "clip_txt_mapper.weight"  # of stage C
EMBEDDING = "clip_mapper.weight"  # of stage B
LATENT_CHANNELS = {True: 16, False: 4}  # of stage C, of stage B
CONDITIONS = ("sca", "crp")


@dataclass(frozen=True, slots=True)
class CascadeLevel:
    """One level of a half: its blocks in their order, run `repeats` times."""

    channels: int
    blocks: tuple[BlockKind, ...]
    repeats: int = 1


@dataclass(frozen=True, slots=True)
class CascadeConfig:
    """Configuration of a stage. `down` and `up` are its halves in the order in which they run.

    `conditions` are the numbers beside the time. `mapped_dim` is the width that all conditioning is mapped to,
    `tokens_per_embedding` how many tokens an embedding becomes. Stage C reads tokens of `text_dim`, stage B
    (`text_dim` 0) a latent of `prior_channels`.
    """

    latent_channels: int
    patch: int
    down: tuple[CascadeLevel, ...]
    up: tuple[CascadeLevel, ...]
    mapped_dim: int
    pooled_dim: int
    tokens_per_embedding: int
    conditions: tuple[str, ...]
    number_dim: int = 64
    text_dim: int = 0
    image_dim: int = 0
    prior_channels: int = 0

    @property
    def is_stage_c(self) -> bool:
        return self.text_dim > 0


def cascade_config(shapes: Shapes) -> CascadeConfig:
    """Return the configuration of the stage with these tensors (names without prefix)."""
    is_stage_c = TEXT in shapes
    down = tuple(_level(shapes, "down", index) for index in range(count_children(shapes, "down_blocks")))
    up = tuple(_level(shapes, "up", index) for index in range(count_children(shapes, "up_blocks")))
    channels = LATENT_CHANNELS[is_stage_c]
    mapper = next(name for name in shapes if name.endswith(".mapper.weight"))
    conditions = tuple(
        name for name in CONDITIONS if mapper.replace("mapper.weight", f"mapper_{name}.weight") in shapes
    )
    mapped_dim = next(shape[1] for name, shape in shapes.items() if name.endswith("kv_mapper.1.weight"))
    pooled = shapes["clip_txt_pooled_mapper.weight" if is_stage_c else EMBEDDING]
    return CascadeConfig(
        latent_channels=channels,
        patch=math.isqrt(shapes[LAST][0] // channels),
        down=down,
        up=up,
        mapped_dim=mapped_dim,
        pooled_dim=pooled[1],
        tokens_per_embedding=pooled[0] // mapped_dim,
        conditions=conditions,
        number_dim=shapes[mapper][1],
        text_dim=shapes[TEXT][1] if is_stage_c else 0,
        image_dim=shapes["clip_img_mapper.weight"][1] if is_stage_c else 0,
        prior_channels=0 if is_stage_c else shapes["effnet_mapper.0.weight"][1],
    )


def _level(shapes: Shapes, half: str, index: int) -> CascadeLevel:
    name = f"{half}_blocks.{index}"
    blocks = tuple(_kind(shapes, f"{name}.{place}") for place in range(count_children(shapes, name)))
    repeats = 1 + count_children(shapes, f"{half}_repeat_mappers.{index}")
    return CascadeLevel(shapes[f"{name}.0.depthwise.weight"][0], blocks, repeats)


def _kind(shapes: Shapes, name: str) -> BlockKind:
    if f"{name}.depthwise.weight" in shapes:
        return "residual"
    return "time" if f"{name}.mapper.weight" in shapes else "attention"


class Resize(nn.Module):
    """A change of width between two levels of stage C, which are of one size; `place` keeps the layer's name."""

    def __init__(self, in_channels: int, out_channels: int, place: int) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Identity(), nn.Identity()]
        layers[place] = Conv2d(in_channels, out_channels, 1)
        self.blocks = nn.ModuleList(layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


class CascadeUnet(nn.Module):
    """Base of both stages: the two halves, and skip connections between their levels."""

    is_wrapped = False

    def __init__(self, config: CascadeConfig) -> None:
        super().__init__()
        self.config = config
        self.compute_dtype: torch.dtype | None = None  # where its weights are kept in another type
        width = config.down[0].channels
        cells = config.latent_channels * config.patch**2
        self.embedding = nn.Sequential(nn.PixelUnshuffle(config.patch), Conv2d(cells, width, 1), PlainNorm())
        self.down_blocks, self.down_downscalers, self.down_repeat_mappers = self._half(config.down, is_up=False)
        self.up_blocks, self.up_upscalers, self.up_repeat_mappers = self._half(config.up, is_up=True)
        self.clf = nn.Sequential(PlainNorm(), Conv2d(width, cells, 1), nn.PixelShuffle(config.patch))

    @property
    def dtype(self) -> torch.dtype:
        """Computation type."""
        return self.compute_dtype or self.clf.get_parameter("1.weight").dtype

    def _half(self, levels: tuple[CascadeLevel, ...], *, is_up: bool) -> tuple[nn.ModuleList, ...]:
        blocks, resizes, repeats = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        for index, level in enumerate(levels):
            blocks.append(
                nn.ModuleList(
                    self._block(kind, level.channels, has_skip=is_up and index > 0 and place == 0)
                    for place, kind in enumerate(level.blocks)
                )
            )
            other = index + 1 if is_up else index - 1
            if not 0 <= other < len(levels):
                resizes.append(nn.Identity())
            else:
                pair = (level.channels, levels[other].channels)
                resizes.append(nn.Sequential(PlainNorm(), self._resize(*(pair if is_up else pair[::-1]), is_up=is_up)))
            repeats.append(nn.ModuleList(Conv2d(level.channels, level.channels, 1) for _ in range(level.repeats - 1)))
        return blocks, resizes, repeats

    def _block(self, kind: BlockKind, channels: int, *, has_skip: bool) -> nn.Module:
        if kind == "residual":
            return CascadeResBlock(channels, channels if has_skip else 0)
        if kind == "time":
            return CascadeTimestepBlock(channels, self.config.number_dim, self.config.conditions)
        return CascadeAttnBlock(channels, self.config.mapped_dim)

    def _resize(self, in_channels: int, out_channels: int, *, is_up: bool) -> nn.Module:
        if self.config.is_stage_c:
            return Resize(in_channels, out_channels, place=1 if is_up else 0)
        if is_up:
            return nn.ConvTranspose2d(in_channels, out_channels, 2, stride=2)
        return Conv2d(in_channels, out_channels, 2, stride=2)

    def numbers(self, timesteps: torch.Tensor, given: Mapping[str, torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
        """Return the embedded time and conditions [B, E * (1 + conditions)]; those not given are zero."""
        values = [timesteps, *(given.get(name, torch.zeros_like(timesteps)) for name in self.config.conditions)]
        return torch.cat([number_embedding(value, self.config.number_dim).to(dtype) for value in values], dim=1)

    def spread(self, mapper: nn.Module, embeddings: torch.Tensor) -> torch.Tensor:
        """Map embeddings [B, D] or [B, P, D] to tokens [B, P * tokens_per_embedding, mapped_dim]."""
        embeddings = embeddings.unsqueeze(1) if embeddings.ndim == 2 else embeddings
        tokens: torch.Tensor = mapper(embeddings)
        return tokens.view(embeddings.shape[0], embeddings.shape[1] * self.config.tokens_per_embedding, -1)

    def normalised(self, tokens: torch.Tensor) -> torch.Tensor:
        return functional.layer_norm(tokens, tokens.shape[-1:], eps=NORM_EPSILON)

    def denoise(
        self,
        x: torch.Tensor,
        numbers: torch.Tensor,
        context: torch.Tensor,
        options: Options,
        control: list[torch.Tensor | None] | None = None,
    ) -> torch.Tensor:
        """Run both halves on embedded cells [B, C, h, w]. `control` is taken from its end, before each residual."""
        skips: list[torch.Tensor] = []
        for blocks, resize, repeats in zip(
            self.down_blocks, self.down_downscalers, self.down_repeat_mappers, strict=True
        ):
            x = self._level(blocks, repeats, resize(x), None, (numbers, context, options), control)
            skips.append(x)
        skips.pop()  # of the lowest level, where the other half begins
        for index, (blocks, resize, repeats) in enumerate(
            zip(self.up_blocks, self.up_upscalers, self.up_repeat_mappers, strict=True)
        ):
            skip = skips.pop() if index else None
            x = resize(self._level(blocks, repeats, x, skip, (numbers, context, options), control))
        out: torch.Tensor = self.clf(x)
        return out

    def _level(
        self,
        blocks: nn.Module,
        repeats: nn.Module,
        x: torch.Tensor,
        skip: torch.Tensor | None,
        inputs: tuple[torch.Tensor, torch.Tensor, Options],
        control: list[torch.Tensor | None] | None,
    ) -> torch.Tensor:
        numbers, context, options = inputs
        mappers: list[nn.Module] = list(repeats.children())
        for turn in range(len(mappers) + 1):
            for place, block in enumerate(blocks.children()):
                if isinstance(block, CascadeResBlock):
                    used = skip if place == 0 else None
                    if used is not None and x.shape[-2:] != used.shape[-2:]:
                        x = _enlarge(x, used.shape[-2:])
                    x = block(_controlled(x, control), used)
                elif isinstance(block, CascadeAttnBlock):
                    x = block(x, context, options)
                else:
                    x = block(x, numbers)
            if turn < len(mappers):
                x = mappers[turn](x)
        return x


def _enlarge(x: torch.Tensor, size: Sequence[int]) -> torch.Tensor:
    return functional.interpolate(x, size=tuple(size), mode="bilinear", align_corners=True)


def _controlled(x: torch.Tensor, control: list[torch.Tensor | None] | None) -> torch.Tensor:
    addition = control.pop() if control else None
    return x if addition is None else x + _enlarge(addition, x.shape[-2:]).to(x.dtype)


class StageC(CascadeUnet):
    """`forward(x [B, 16, h, w], timesteps [B], clip_text [B, T, D], clip_text_pooled [B, D], clip_img [B, P, D])`."""

    def __init__(self, config: CascadeConfig) -> None:
        super().__init__(config)
        spread = config.mapped_dim * config.tokens_per_embedding
        self.clip_txt_mapper = Linear(config.text_dim, config.mapped_dim)
        self.clip_txt_pooled_mapper = Linear(config.pooled_dim, spread)
        self.clip_img_mapper = Linear(config.image_dim, spread)

    def forward(
        self,
        x: torch.Tensor,
        timesteps: torch.Tensor,
        context: torch.Tensor | None = None,
        y: torch.Tensor | None = None,
        control: dict[str, list[torch.Tensor | None]] | None = None,
        transformer_options: Options | None = None,
        *,
        clip_text: torch.Tensor,
        clip_text_pooled: torch.Tensor,
        clip_img: torch.Tensor,
        **kwargs: Any,
    ) -> torch.Tensor:
        tokens = [
            self.clip_txt_mapper(clip_text),
            self.spread(self.clip_txt_pooled_mapper, clip_text_pooled),
            self.spread(self.clip_img_mapper, clip_img),
        ]
        options = {} if transformer_options is None else transformer_options
        numbers = self.numbers(timesteps, kwargs, x.dtype)
        additions = None if control is None else control.get("input")
        return self.denoise(self.embedding(x), numbers, self.normalised(torch.cat(tokens, dim=1)), options, additions)


class StageB(CascadeUnet):
    """`forward(x [B, 4, h, w], timesteps [B], effnet [B, 16, h, w] of stage C, clip [B, D] or [B, P, D])`."""

    def __init__(self, config: CascadeConfig) -> None:
        super().__init__(config)
        width = config.down[0].channels
        self.effnet_mapper = _mapper(config.prior_channels, width)
        self.pixels_mapper = _mapper(3, width)
        self.clip_mapper = Linear(config.pooled_dim, config.mapped_dim * config.tokens_per_embedding)

    def forward(
        self,
        x: torch.Tensor,
        timesteps: torch.Tensor,
        context: torch.Tensor | None = None,
        y: torch.Tensor | None = None,
        control: dict[str, list[torch.Tensor | None]] | None = None,
        transformer_options: Options | None = None,
        *,
        effnet: torch.Tensor,
        clip: torch.Tensor,
        pixels: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        pixels = x.new_zeros(x.shape[0], 3, PREVIEW_PX, PREVIEW_PX) if pixels is None else pixels
        tokens = self.normalised(self.spread(self.clip_mapper, clip))
        options = {} if transformer_options is None else transformer_options
        numbers = self.numbers(timesteps, kwargs, x.dtype)
        h = self.embedding(x)
        size = h.shape[-2:]
        h = h + self.effnet_mapper(_enlarge(effnet, size)) + _enlarge(self.pixels_mapper(pixels), size)
        return self.denoise(h, numbers, tokens, options)


def _mapper(in_channels: int, width: int) -> nn.Sequential:
    return nn.Sequential(Conv2d(in_channels, width * 4, 1), nn.GELU(), Conv2d(width * 4, width, 1), PlainNorm())


def build_stage(config: CascadeConfig) -> CascadeUnet:
    """Build the network of either stage."""
    return StageC(config) if config.is_stage_c else StageB(config)
