"""The image encoder of Qwen3-VL (Bai et al. 2025, arXiv 2511.21631), of any width.

Images of any size become patches of 16 pixels, four of which become one token of a language model. All blocks attend
to the whole image. Places are a table, interpolated to the size of the image, and rotations by row and column (Su
et al. 2021, arXiv 2104.09864). The outputs of some blocks go to layers of the language model by themselves (DeepStack,
Meng et al. 2024, arXiv 2406.04334). `P` patches, `D` width, `H` heads, `N` tokens (P / 4). Module names are those of
the original checkpoints.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional
from torch.nn.functional import scaled_dot_product_attention

from darkroom.engine.layers.basic import Linear, linear
from darkroom.engine.layers.qwen25_vl_vision import (
    FRAMES,
    MERGED,
    Rotation,
    in_order_of_tokens,
    patch_rotation,
    patches_of_image,
    rotated,
)
from darkroom.engine.layers.shapes import Shapes, count_children

PATCH_PX = 16  # a side
HEADS = 16
MEAN = DEVIATION = (0.5, 0.5, 0.5)
EPS = 1e-6
TAPPED_BLOCKS = {24: (5, 11, 17), 27: (8, 16, 24)}  # by the number of blocks: those whose output goes to layers

MARK = "deepstack_merger_list.0.norm.weight"


@dataclass(frozen=True, slots=True)
class Qwen3VlVisionConfig:
    """Configuration of the encoder. `out_width` is that of the language model's tokens, `table_side` the table's.

    Without `is_tapped` the outputs of no blocks go to layers by themselves.
    """

    width: int
    inner_width: int
    num_blocks: int
    out_width: int
    table_side: int = 48
    is_tapped: bool = True

    @property
    def tapped(self) -> tuple[int, ...]:
        return TAPPED_BLOCKS[self.num_blocks] if self.is_tapped else ()


class SeenPatches(NamedTuple):
    """An image as the encoder returns it: its tokens, features for layers [N, out_width], rows and columns."""

    tokens: torch.Tensor
    by_layer: tuple[torch.Tensor, ...]
    size: tuple[int, int]


def qwen3_vl_vision_config(shapes: Shapes, *, is_tapped: bool = True) -> Qwen3VlVisionConfig:
    """Return the configuration of the encoder with these tensors (names without prefix).

    Raises:
        KeyError: no published encoder has so many blocks.
    """
    num_blocks = count_children(shapes, "blocks")
    if is_tapped and num_blocks not in TAPPED_BLOCKS:
        raise KeyError(f"blocks.{max(TAPPED_BLOCKS) - 1}.norm1.weight")
    num_places, width = shapes["pos_embed.weight"]
    return Qwen3VlVisionConfig(
        width=width,
        inner_width=shapes["blocks.0.mlp.linear_fc1.weight"][0],
        num_blocks=num_blocks,
        out_width=shapes["merger.linear_fc2.weight"][0],
        table_side=round(num_places**0.5),
        is_tapped=is_tapped,
    )


# --- layers ----------------------------------------------------------------------------------------------------------


class PatchEmbedding(nn.Conv3d):
    """The convolution of patches that do not overlap, as a matrix product."""

    def __init__(self, width: int) -> None:
        kernel = (FRAMES, PATCH_PX, PATCH_PX)
        super().__init__(3, width, kernel, stride=kernel)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return linear(input, self.weight.flatten(1), self.bias)


class PatchAttention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv = Linear(width, width * 3)
        self.proj = Linear(width, width)

    def forward(self, x: torch.Tensor, rotation: Rotation) -> torch.Tensor:
        """Return [P, D]."""
        q, k, v = self.qkv(x).view(x.shape[0], 3, HEADS, -1).unbind(1)  # [P, H, D / H] each
        q, k, v = (item.transpose(0, 1)[None] for item in (rotated(q, rotation).to(v), rotated(k, rotation).to(v), v))
        attended: torch.Tensor = self.proj(scaled_dot_product_attention(q, k, v)[0].transpose(0, 1).flatten(1))
        return attended


class FeedForward(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.linear_fc1, self.linear_fc2 = Linear(width, inner), Linear(inner, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.linear_fc2(functional.gelu(self.linear_fc1(x), approximate="tanh"))
        return out


class PatchBlock(nn.Module):
    def __init__(self, config: Qwen3VlVisionConfig) -> None:
        super().__init__()
        self.norm1, self.norm2 = (nn.LayerNorm(config.width, eps=EPS) for _ in range(2))
        self.attn = PatchAttention(config.width)
        self.mlp = FeedForward(config.width, config.inner_width)

    def forward(self, x: torch.Tensor, rotation: Rotation) -> torch.Tensor:
        x = x + self.attn(self.norm1(x), rotation)
        out: torch.Tensor = x + self.mlp(self.norm2(x))
        return out


class PatchMerger(nn.Module):
    """Four neighbouring patches -> one token of the language model; `joins_first`: the norm is of all four."""

    def __init__(self, config: Qwen3VlVisionConfig, *, joins_first: bool) -> None:
        super().__init__()
        joined = config.width * MERGED**2
        self.norm = nn.LayerNorm(joined if joins_first else config.width, eps=EPS)
        self.linear_fc1, self.linear_fc2 = Linear(joined, joined), Linear(joined, config.out_width)
        self.joined, self.joins_first = joined, joins_first

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(x.view(-1, self.joined)) if self.joins_first else self.norm(x).view(-1, self.joined)
        out: torch.Tensor = self.linear_fc2(functional.gelu(self.linear_fc1(x)))
        return out


# --- network ---------------------------------------------------------------------------------------------------------


def interpolated_places(table: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """Return the rows [P, D] of a square table [S * S, D] stretched over an image, in the order of its patches.

    Its corners are the image's; between its entries they are mixed linearly, in the table's own type.
    """
    side = round(table.shape[0] ** 0.5)
    (above, below, down), (left, right, along) = (_between(count, side, table.device) for count in (rows, columns))
    corners = (
        (above, left, (1 - down), (1 - along)), (above, right, (1 - down), along),
        (below, left, down, (1 - along)), (below, right, down, along),
    )  # fmt: skip
    mixed = sum(
        table[in_order_of_tokens(row[:, None] * side + column[None])]
        * in_order_of_tokens(share_down[:, None] * share_along[None]).to(table.dtype)[:, None]
        for row, column, share_down, share_along in corners
    )
    assert isinstance(mixed, torch.Tensor)
    return mixed


def _between(count: int, side: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return for each of `count` places along a side of the table: the entry before, that behind, and its share."""
    places = torch.linspace(0, side - 1, count, device=device)
    before = places.int()
    return before, (before + 1).clip(max=side - 1), places - before


class Qwen3VlVision(nn.Module):
    """`forward(image [H, W, 3] of 0..1, or two frames [2, H, W, 3], dtype)` -> `SeenPatches` of that type."""

    def __init__(self, config: Qwen3VlVisionConfig) -> None:
        super().__init__()
        self.config = config
        self.patch_embed = nn.ModuleDict({"proj": PatchEmbedding(config.width)})
        self.pos_embed = nn.Embedding(config.table_side**2, config.width)
        self.blocks = nn.ModuleList(PatchBlock(config) for _ in range(config.num_blocks))
        self.merger = PatchMerger(config, joins_first=False)
        self.deepstack_merger_list = nn.ModuleList(PatchMerger(config, joins_first=True) for _ in config.tapped)

    def forward(self, image: torch.Tensor, dtype: torch.dtype) -> SeenPatches:
        patches, (rows, columns) = patches_of_image(image.float(), PATCH_PX, MEAN, DEVIATION)
        cos, sin = (item.to(image.device) for item in patch_rotation(rows, columns, self.config.width // HEADS))
        x = self.patch_embed["proj"](patches.to(dtype))
        x = x + interpolated_places(self.pos_embed.weight, rows, columns).to(x)
        by_layer = []
        for index, block in enumerate(self.blocks):
            x = block(x, (cos, sin))
            if index in self.config.tapped:
                by_layer.append(self.deepstack_merger_list[self.config.tapped.index(index)](x))
        return SeenPatches(self.merger(x), tuple(by_layer), (rows // MERGED, columns // MERGED))
