"""Positions in PixelDiT: rotations of patches and of a text's tokens, and sinusoids of pixels.

Rows and columns of patches are spread over a fixed range, whatever the size of the image. `T` patches, `P` pairs of
channels of a head, `E` channels of a pixel.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from darkroom.engine.layers.rope_options import ROPE_OPTIONS
from darkroom.engine.layers.rotary import rotations
from darkroom.engine.layers.unet_layers import Options

THETA = 10000.0
RANGE = 16.0  # positions of the last row and of the last column


def patch_rotations(
    rows: int, columns: int, head_dim: int, options: Options, device: torch.device, trained_side: int | None = None
) -> torch.Tensor:
    """Return the rotations [1, T, 1, P, 2, 2] of patches, row by row, float32; pairs turn by column and row in turns.

    `rope_options` of the transformer options scale and shift the range. With `trained_side` [patches] the base of the
    angles of an axis grows with its length over that side (NTK-aware scaling, as in YaRN: Peng et al. 2023, arXiv
    2309.00071, 3.1).
    """
    asked: Mapping[str, float] = options.get(ROPE_OPTIONS) or {}
    axis_dim = head_dim // 2
    across = _along(columns, "x", asked, device).expand(rows, columns)
    down = _along(rows, "y", asked, device)[:, None].expand(rows, columns)
    by_axis = [
        rotations(positions.reshape(1, -1, 1), (axis_dim,), _theta(length, axis_dim, trained_side))
        for positions, length in ((across, columns), (down, rows))
    ]  # [1, 1, T, P / 2, 2, 2] each
    return torch.stack(by_axis, dim=4).flatten(3, 4).transpose(1, 2)


def text_rotations(num_tokens: int, head_dim: int, device: torch.device) -> torch.Tensor:
    """Return the rotations [1, tokens, 1, P, 2, 2] of a text's tokens, float32."""
    positions = torch.arange(num_tokens, device=device).reshape(1, -1, 1)
    return rotations(positions, (head_dim,), THETA).transpose(1, 2)


def pixel_sinusoids(length: int, channels: int, device: torch.device) -> torch.Tensor:
    """Return the sinusoids [length, channels] of pixels along an axis, float32, sines first."""
    half = channels // 2
    steps = 1.0 / 10000 ** (torch.arange(half, dtype=torch.float32, device=device) / half)
    angles = torch.outer(torch.arange(length, dtype=torch.float32, device=device), steps)
    return torch.cat([torch.sin(angles), torch.cos(angles)], dim=1)


def _along(count: int, axis: str, asked: Mapping[str, float], device: torch.device) -> torch.Tensor:
    first = asked.get(f"shift_{axis}", 0.0)
    return torch.linspace(first, RANGE * asked.get(f"scale_{axis}", 1.0) + first, count, device=device)


def _theta(length: int, axis_dim: int, trained_side: int | None) -> float:
    if trained_side is None or axis_dim <= 2:
        return THETA
    growth: float = (length / trained_side) ** (axis_dim / (axis_dim - 2))
    return THETA * growth
