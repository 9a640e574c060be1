"""Sparse attention of MiniMax H3's blocks, as nodes set it: by cubes of the video, or by tokens that follow each other.

Video Sparse Attention (Zhang et al. 2025, arXiv 2505.13389), for which FastH3 (FastVideo 2026) is trained: a tile is a
cube of the video, every token attends to all that is no video, and with the network's gate attention among the tiles'
means is added. Sparse-Linear Attention has tiles of tokens as they follow each other.
"""

from __future__ import annotations

from enum import StrEnum
from itertools import groupby

import torch

from darkroom.engine.diffusion.sparse_schedule import SparseSchedule
from darkroom.engine.families.minimax_h3.layers import Attention, Rotation
from darkroom.engine.families.minimax_h3.layout import Sequencing, Source
from darkroom.engine.layers.block_sparse_attention import (
    TILE,
    KeptTiles,
    Tiles,
    block_sparse_attention,
    tiles_in_order,
)

CUBE = (4, 4, 4)  # frames, rows and columns of tokens


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
        self._tiles = KeptTiles()

    def tiles(self, layout: Sequencing, device: torch.device) -> Tiles:
        """Return the tiles of a sequence on a device, made when it is first met."""
        key = (tuple(layout.stretches), layout.size)
        return self._tiles.find(key, device, lambda: self._made(layout))

    def _made(self, layout: Sequencing) -> Tiles:
        return cube_tiles(layout) if self._method is Method.CUBES else ordered_tiles(layout, self._sinks)

    def attend(self, layer: Attention, x: torch.Tensor, rotation: Rotation, tiles: Tiles) -> torch.Tensor:
        """Return the layer's sparse attention [B, S, D] of its input [B, S, D]."""
        q, k, v = layer.projected(x, rotation)
        gate = layer.to_gate_compress
        coarse = None if gate is None or self._method is not Method.CUBES else gate(x).view_as(q)
        mixed = block_sparse_attention(q, k, v.view_as(q), tiles, self._share, coarse_gate=coarse)
        out: torch.Tensor = layer.out_proj(mixed.flatten(2))
        return out
