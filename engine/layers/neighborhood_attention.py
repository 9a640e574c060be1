"""Attention of each cell of a video to those around it (Hassani et al. 2023, arXiv 2204.07143), in blocks of cells.

Every cell sees a window of the same size, which lies around it, or at the edge where the cell is near to one. A block
of cells attends to the cells of all its windows, masked, so that memory is that of a block. `B` batch, `F` frames,
`h w` cells, `N` heads, `D` channels of a head.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch.nn.functional import scaled_dot_product_attention

BLOCK = 8  # cells a side, and frames


def window_starts(size: int, window: int, device: torch.device) -> torch.Tensor:
    """Return the first cell of the window of each cell of an axis [size]. `window` is at most the size."""
    return (torch.arange(size, device=device) - window // 2).clamp(0, size - window)


def neighborhood_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, window: Sequence[int]) -> torch.Tensor:
    """Return the attention of each cell [B, F, h, w, N, D] to those in its window of (frames, rows, columns)."""
    sizes = q.shape[1:4]
    windows = [min(wanted, size) for wanted, size in zip(window, sizes, strict=True)]
    starts = [window_starts(*pair, q.device) for pair in zip(sizes, windows, strict=True)]
    out = torch.empty_like(q)
    blocks = [range(0, size, BLOCK) for size in sizes]
    for corner in itertools.product(*blocks):
        cells = tuple(slice(at, min(at + BLOCK, size)) for at, size in zip(corner, sizes, strict=True))
        seen = tuple(
            slice(_start(part.start, length, size), _start(part.stop - 1, length, size) + length)
            for part, length, size in zip(cells, windows, sizes, strict=True)
        )
        mask = _mask(starts, windows, cells, seen)
        query, key, value = (
            _as_tokens(item[(slice(None), *place)]) for item, place in ((q, cells), (k, seen), (v, seen))
        )
        read = scaled_dot_product_attention(query, key, value, attn_mask=mask)  # [B, N, cells, D]
        shape = (q.shape[0], *(part.stop - part.start for part in cells), *q.shape[4:])
        out[(slice(None), *cells)] = read.transpose(1, 2).reshape(shape)
    return out


def _start(cell: int, window: int, size: int) -> int:
    """Return the first cell of the window of a cell of an axis, as `window_starts` has it on a device."""
    return min(max(cell - window // 2, 0), size - window)


def _as_tokens(x: torch.Tensor) -> torch.Tensor:
    """Return cells [B, F, h, w, N, D] as tokens [B, N, F * h * w, D]."""
    return x.flatten(1, 3).transpose(1, 2)


def _mask(
    starts: Sequence[torch.Tensor], windows: Sequence[int], cells: Sequence[slice], seen: Sequence[slice]
) -> torch.Tensor | None:
    """Return a mask of the seen cells that each cell of a block attends to [cells, seen]; None for all."""
    by_axis = []
    for start, window, part, place in zip(starts, windows, cells, seen, strict=True):
        own = start[part, None]
        at = torch.arange(place.start, place.stop, device=start.device)
        by_axis.append((at >= own) & (at < own + window))  # [cells of the axis, seen of the axis]
    frames, rows, columns = by_axis
    mask = (
        frames[:, None, None, :, None, None] & rows[None, :, None, None, :, None] & columns[None, None, :, None, None]
    )
    return mask.flatten(3).flatten(0, 2)
