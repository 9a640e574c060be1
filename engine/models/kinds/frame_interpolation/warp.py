"""Backward warping of images by optical flow.

`B` batch, `C` channels, `H W` pixels. A flow [B, 2, H, W] is in pixels: how far right and how far down a value is taken
from.
"""

from __future__ import annotations

import torch
from torch.nn import functional


def warp_by_corners(image: torch.Tensor, flow: torch.Tensor) -> torch.Tensor:
    """Return an image [B, C, H, W] with each value taken from where its flow leads.

    Coordinates reach from the centre of the first pixel to that of the last one, as RIFE was trained.
    """
    height, width = image.shape[2:]
    reach = flow.new_tensor((max(width - 1, 1) / 2, max(height - 1, 1) / 2)).view(1, 2, 1, 1)
    return _sampled(image, flow.float() / reach, _positions(width, 1.0, image), _positions(height, 1.0, image), True)


def warp_by_borders(image: torch.Tensor, flow: torch.Tensor) -> torch.Tensor:
    """Return an image [B, C, H, W] with each value taken from where its flow leads.

    Coordinates reach from the outer border of the first pixel to that of the last one, as FILM was trained.
    """
    height, width = image.shape[2:]
    half = flow.new_tensor((width / 2, height / 2)).view(1, 2, 1, 1)
    columns, rows = _positions(width, 1 - 1 / width, image), _positions(height, 1 - 1 / height, image)
    return _sampled(image, flow.float() / half, columns, rows, False)


def _positions(size: int, last: float, like: torch.Tensor) -> torch.Tensor:
    return torch.linspace(-last, last, size, dtype=torch.float32, device=like.device)


def _sampled(
    image: torch.Tensor, offset: torch.Tensor, columns: torch.Tensor, rows: torch.Tensor, align_corners: bool
) -> torch.Tensor:
    """Sample bilinearly, in float32, at the grid of `columns` and `rows` shifted by `offset` [B, 2, H, W]."""
    grid = torch.stack((columns + offset[:, 0], rows[:, None] + offset[:, 1]), dim=-1)
    sampled = functional.grid_sample(
        image.float(), grid, mode="bilinear", padding_mode="border", align_corners=align_corners
    )
    return sampled.to(image.dtype)
