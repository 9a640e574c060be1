"""Sparse attention of MiniMax H3's blocks, as nodes set it: by cubes of the video, or by tokens that follow each other.

Video Sparse Attention (Zhang et al. 2025, arXiv 2505.13389), for which FastH3 (FastVideo 2026) is trained: a tile is a
cube of the video, every token attends to all that is no video, and with the network's gate attention among the tiles'
means is added. Sparse-Linear Attention has tiles of tokens as they follow each other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby
from typing import Any

import torch

from darkroom.engine.diffusion.options import Options
from darkroom.engine.diffusion.sparse_attention import MAX_KEPT, SparseSchedule
from darkroom.engine.families.minimax_h3.layers import Attention, Rotation
from darkroom.engine.families.minimax_h3.layout import Sequencing, Source
from darkroom.engine.layers.block_sparse_attention import TILE, Tiles, block_sparse_attention, tiles_in_order

CUBE = (4, 4, 4)  # frames, rows and columns of tokens

BlockPatch = Callable[[Mapping[str, Any], Mapping[str, Any]], dict[str, torch.Tensor]]


class Method(StrEnum):
    """Order of tokens in tiles."""

    CUBES = "vsa"
    IN_ORDER = "sla"


class Sinks(StrEnum):
    """Use of the tokens before the video, where tokens are in order: all attend to them, and they attend to all."""

    KEYS = "exact_kv"
    KEYS_AND_ROWS = "exact_kv_and_rows"
    NONE = "off"


def cube_tiles(layout: Sequencing) -> Tiles:
    """Return the tiles of a sequence: of each of its parts before the video, then cubes of the video."""
    runs = groupby(layout.stretches[:-1], key=lambda item: item.source == Source.TEXT)
    lengths: list[int] = []
    for is_text, items in runs:
        counts = [item.num_tokens for item in items]
        lengths += [sum(counts)] if is_text else counts
    tiles, first = [], 0
    for length in filter(None, lengths):
        part = torch.full((-(-length // TILE) * TILE,), -1)
        part[:length] = torch.arange(first, first + length)
        tiles.append(part.view(-1, TILE))
        first += length
    num_before = sum(map(len, tiles))
    return Tiles.of(torch.cat([*tiles, _cubes(layout.grid, first)]), sinks=(0, num_before), full=(0, num_before))


def _cubes(grid: tuple[int, int, int], first: int) -> torch.Tensor:
    """Return the tokens of a video in cubes [n, TILE], counted from `first`; -1 behind those of cubes that are cut."""
    padded = [-(-side // cube) * cube for side, cube in zip(grid, CUBE, strict=True)]
    frames, rows, columns = grid
    tokens = torch.full(padded, -1)
    tokens[:frames, :rows, :columns] = torch.arange(first, first + frames * rows * columns).view(grid)
    split = [size for side, cube in zip(padded, CUBE, strict=True) for size in (side // cube, cube)]
    cubes = tokens.view(split).permute(0, 2, 4, 1, 3, 5).reshape(-1, TILE)
    return cubes.gather(1, (cubes < 0).int().argsort(dim=1, stable=True))


def ordered_tiles(layout: Sequencing, sinks: Sinks) -> Tiles:
    """Return the tiles of a sequence in order, with the means of tiles."""
    before_audio, before_video = layout.ends()
    total = sum(item.num_tokens for item in layout.stretches)
    if sinks is Sinks.NONE or not before_video:
        return tiles_in_order(total)
    last = -(-before_video // TILE)
    full = (before_audio // TILE, last) if sinks is Sinks.KEYS_AND_ROWS else (0, 0)
    return tiles_in_order(total, sinks=(0, last), full=full)


class SparseBlocks:
    """Sparse attention of all blocks of a MODEL, which share the order of tokens.

    `share` is that of the tiles that a tile attends to by their scores.
    """

    def __init__(self, schedule: SparseSchedule, method: Method, share: float, sinks: Sinks) -> None:
        self.schedule = schedule
        self._method, self._share, self._sinks = method, share, sinks
        self._tiles: dict[object, Tiles] = {}  # by layout and device

    def tiles(self, layout: Sequencing, device: torch.device) -> Tiles:
        """Return the tiles of a sequence on a device, made when it is first met."""
        key = (tuple(layout.stretches), layout.grid, str(device))
        if key not in self._tiles:
            made = cube_tiles(layout) if self._method is Method.CUBES else ordered_tiles(layout, self._sinks)
            self._tiles = dict(list(self._tiles.items())[1 - MAX_KEPT :])
            self._tiles[key] = made.to(device)
        return self._tiles[key]

    def attend(self, layer: Attention, x: torch.Tensor, rotation: Rotation, tiles: Tiles) -> torch.Tensor:
        """Return the layer's sparse attention [B, S, D] of its input [B, S, D]."""
        q, k, v = layer.projected(x, rotation)
        gate = layer.to_gate_compress
        coarse = None if gate is None or self._method is not Method.CUBES else gate(x).view_as(q)
        mixed = block_sparse_attention(q, k, v.view_as(q), tiles, self._share, coarse_gate=coarse)
        out: torch.Tensor = layer.out_proj(mixed.flatten(2))
        return out


@dataclass(frozen=True, slots=True)
class SparseBlock:
    """A function in place of a block, whose attention is sparse. `previous` stood there before, if any did."""

    blocks: SparseBlocks
    index: int
    previous: BlockPatch | None = None

    def __call__(self, args: Mapping[str, Any], extra: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """Return the block's result for its arguments."""
        x: torch.Tensor = args["img"]
        if self.blocks.schedule.is_sparse(args["transformer_options"], x.shape[1], self.index):
            tiles = self.blocks.tiles(args["layout"], x.device)

            def attend(layer: Attention, x: torch.Tensor, rotation: Rotation, options: Options | None) -> torch.Tensor:
                return self.blocks.attend(layer, x, rotation, tiles)

            args = {**args, "attention": attend}
        if self.previous is not None:
            return self.previous(args, extra)
        result: dict[str, torch.Tensor] = extra["original_block"](args)
        return result

    def __deepcopy__(self, memo: object) -> SparseBlock:
        """Return itself: clones of a MODEL share the order of tokens."""
        return self
