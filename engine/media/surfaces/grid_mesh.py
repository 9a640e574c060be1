"""Meshes of images whose pixels are points in space. `H W` pixels, `V` corners, `F` triangles."""

from __future__ import annotations

import torch
from torch.nn import functional

LEAST_DEPTH = 1e-6


def grid_mesh(
    points: torch.Tensor, depth: torch.Tensor, stride: int, edge: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return corners [V, 3], triangles [F, 3] and places in the image [V, 2] of 0..1 of points [H, W, 3].

    Each `stride`-th point of a row and column is a corner where it is finite, and not at an edge: where depth [H, W]
    changes by more than the share `edge` among the nine around (0: everywhere). Two triangles join four corners.
    """
    is_kept = points.isfinite().all(dim=-1)
    if edge > 0:
        is_kept = is_kept & ~depth_edges(torch.where(is_kept, depth, 0.0), edge)
    points, is_kept = points[::stride, ::stride], is_kept[::stride, ::stride]
    height, width = is_kept.shape
    numbers = (is_kept.flatten().cumsum(0) - 1).view(height, width)
    rows, columns = (torch.arange(size, dtype=torch.float32) / max(size - 1, 1) for size in (height, width))
    places = torch.stack((columns.expand(height, width), rows[:, None].expand(height, width)), dim=-1)
    start, end = slice(None, -1), slice(1, None)
    corners = ((start, start), (start, end), (end, end), (end, start))
    is_whole = torch.stack([is_kept[corner] for corner in corners]).all(dim=0)
    a, b, c, d = (numbers[corner][is_whole] for corner in corners)
    faces = torch.cat((torch.stack((a, b, c), dim=-1), torch.stack((a, c, d), dim=-1)))
    return points[is_kept], faces, places[is_kept]


def depth_edges(depth: torch.Tensor, share: float) -> torch.Tensor:
    """Return True for pixels [..., H, W] around which depth changes by more than that share of it, within 3x3."""
    flat = depth.reshape(-1, 1, *depth.shape[-2:])
    span = functional.max_pool2d(flat, 3, 1, 1) + functional.max_pool2d(-flat, 3, 1, 1)
    return ((span / flat.clamp(min=LEAST_DEPTH)).nan_to_num() > share).view(depth.shape)
