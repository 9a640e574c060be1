"""Frames, rows and columns of videos as channels, and back.

`B` batch, `C` channels, `F` frames, `h w` cells, `H W` pixels.
"""

from __future__ import annotations

import torch

Stride = tuple[int, int, int]  # frames, rows, columns


def cells_of(stride: Stride) -> int:
    """Return the number of cells that are one channel each."""
    return stride[0] * stride[1] * stride[2]


def folded(x: torch.Tensor, stride: Stride) -> torch.Tensor:
    """Move frames, rows and columns [B, C, F, h, w] into channels."""
    batch, channels, length, height, width = x.shape
    frames, rows, columns = stride
    parts = x.reshape(batch, channels, length // frames, frames, height // rows, rows, width // columns, columns)
    return parts.permute(0, 1, 3, 5, 7, 2, 4, 6).flatten(1, 4)


def unfolded(x: torch.Tensor, stride: Stride) -> torch.Tensor:
    """Move channels [B, C, F, h, w] into frames, rows and columns."""
    parts = x.reshape(x.shape[0], -1, *stride, *x.shape[2:])  # [B, C, p1, p2, p3, F, h, w]
    return parts.permute(0, 1, 5, 2, 6, 3, 7, 4).flatten(6, 7).flatten(4, 5).flatten(2, 3)


def patched(x: torch.Tensor, patch: Stride) -> torch.Tensor:
    """Move the pixels [B, 3, F, H, W] of patches into channels, columns before rows."""
    batch, channels, length, height, width = x.shape
    _, rows, columns = patch
    parts = x.reshape(batch, channels, length, height // rows, rows, width // columns, columns)  # [B, C, F, h, q, w, r]
    return parts.permute(0, 1, 6, 4, 2, 3, 5).flatten(1, 3)


def unpatched(x: torch.Tensor, patch: Stride) -> torch.Tensor:
    """Move channels, columns before rows, into the pixels of patches."""
    _, rows, columns = patch
    parts = x.reshape(x.shape[0], -1, columns, rows, *x.shape[2:])  # [B, C, r, q, F, h, w]
    return parts.permute(0, 1, 4, 5, 3, 6, 2).flatten(5, 6).flatten(3, 4)
