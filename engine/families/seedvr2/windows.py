"""Windows of a video's tokens in which SeedVR2 attends (Wang et al. 2025, arXiv 2506.05301, section 3.2).

Windows are as large as they would be on a grid of 45 x 80 tokens, of which an image's sides have three each, and up to
30 frames four. Every other block has them shifted by half a window. `t h w` frames, rows and columns of tokens, `T`
tokens of a video.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

Grid = tuple[int, int, int]  # frames, rows, columns
Sizes = tuple[tuple[int, int], ...]  # (number of windows, tokens of one) of windows of equal shapes, in their order

REFERENCE_AREA = 45 * 80  # tokens of an image by which windows are scaled
MOST_FRAMES = 30
NUM_WINDOWS: Grid = (4, 3, 3)
SHIFT = 0.5  # of a window, where there are several along an axis
KINDS = 2  # plain windows, and shifted ones


@dataclass(frozen=True, slots=True)
class WindowedTokens:
    """Tokens of a video in the order of its windows, once for plain windows and once for shifted ones.

    `order` [1, 2, T] has the index of the token at each position, `places` [1, 2, T] the position of each token, both
    int64; `positions` [1, 2, T, 3] those of tokens within their windows, float32: by cells, or with `is_relative` from
    -1 to 1 along each side. `sizes` are the windows of both kinds.
    """

    order: torch.Tensor
    places: torch.Tensor
    positions: torch.Tensor
    sizes: tuple[Sizes, ...]


def window_lengths(grid: Grid) -> Grid:
    """Return the frames, rows and columns of a whole window."""
    frames, rows, columns = grid
    scale = math.sqrt(REFERENCE_AREA / (rows * columns))
    lengths = (min(frames, MOST_FRAMES), round(rows * scale), round(columns * scale))
    along_time, down, across = (math.ceil(length / count) for length, count in zip(lengths, NUM_WINDOWS, strict=True))
    return along_time, down, across


def spans(length: int, window: int, *, is_shifted: bool) -> list[tuple[int, int]]:
    """Return start and end of the windows along one axis; shifted ones begin with a part of a window."""
    shift = SHIFT if is_shifted and window < length else 0.0
    count = math.ceil((length - shift) / window) + (1 if shift else 0)
    ends = [min(max(int((index - shift) * window), 0), length) for index in range(count + 1)]
    return [(start, end) for start, end in itertools.pairwise(ends) if end > start]


def windowed_tokens(grid: Grid, *, is_relative: bool) -> WindowedTokens:
    """Return the tokens of a video of `grid` tokens in the order of its windows, on the CPU."""
    indices = torch.arange(math.prod(grid)).view(grid)
    kinds = [_ordered(indices, is_shifted=bool(kind), is_relative=is_relative) for kind in range(KINDS)]
    order = torch.stack([item[0] for item in kinds])
    return WindowedTokens(
        order=order[None],
        places=order.argsort(dim=1)[None],
        positions=torch.stack([item[1] for item in kinds])[None],
        sizes=tuple(item[2] for item in kinds),
    )


def _ordered(indices: torch.Tensor, *, is_shifted: bool, is_relative: bool) -> tuple[torch.Tensor, torch.Tensor, Sizes]:
    """Return the tokens of one kind of windows, those of equal shapes behind each other: indices, positions, sizes."""
    lengths = window_lengths((indices.shape[0], indices.shape[1], indices.shape[2]))
    along = [spans(side, window, is_shifted=is_shifted) for side, window in zip(indices.shape, lengths, strict=True)]
    by_shape: dict[tuple[int, ...], list[torch.Tensor]] = {}
    for window in itertools.product(*along):
        shape = tuple(end - start for start, end in window)
        tokens = indices[tuple(slice(*span) for span in window)].flatten()
        by_shape.setdefault(shape, []).append(tokens)
    order = torch.cat([tokens for windows in by_shape.values() for tokens in windows])
    positions = torch.cat(
        [_positions(shape, is_relative=is_relative).repeat(len(found), 1) for shape, found in by_shape.items()]
    )
    return order, positions, tuple((len(found), math.prod(shape)) for shape, found in by_shape.items())


def _positions(shape: Sequence[int], *, is_relative: bool) -> torch.Tensor:
    """Return the positions [n, 3] of a window's tokens, float32."""
    axes = [torch.linspace(-1, 1, side) if is_relative else torch.arange(side).float() for side in shape]
    return torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1).flatten(0, 2)
