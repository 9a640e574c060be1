"""Latents as patches, the tokens of transformers, and back.

`B` batch, `C` channels, `h w` latent cells, `T` patches, row by row, `p` cells of a patch's side.
"""

from __future__ import annotations

import torch
from torch.nn import functional

PATCH = 2  # cells a side, of most transformers


def pad_to_patches(x: torch.Tensor, patch_size: int) -> torch.Tensor:
    """Pad a latent [B, C, h, w], or each frame of a video [B, C, F, h, w], to whole patches by wrapping around."""
    below, right = (-side % patch_size for side in x.shape[-2:])
    sides = (0, right, 0, below, *(0, 0) * (x.ndim - 4))
    return functional.pad(x, sides, mode="circular") if below or right else x


def patches_of(latent: torch.Tensor) -> torch.Tensor:
    """Return the patches of a latent [B, C, h, w] as tokens [B, T, C * 4], channels outermost."""
    batch, channels, height, width = latent.shape
    cells = latent.reshape(batch, channels, height // PATCH, PATCH, width // PATCH, PATCH)
    return cells.permute(0, 2, 4, 1, 3, 5).reshape(batch, -1, channels * PATCH * PATCH)


def image_of(tokens: torch.Tensor, like: torch.Tensor, channels: int) -> torch.Tensor:
    """Return patches [B, T, C * 4], channels outermost, as a latent [B, C, h, w] of the size of `like`."""
    rows, columns = like.shape[-2] // PATCH, like.shape[-1] // PATCH
    cells = tokens.view(-1, rows, columns, channels, PATCH, PATCH)
    return cells.permute(0, 3, 1, 4, 2, 5).reshape(-1, channels, rows * PATCH, columns * PATCH)


def patches_channels_last(latent: torch.Tensor, patch: int = PATCH) -> torch.Tensor:
    """Return the patches of a latent [B, C, h, w] as tokens [B, T, p * p * C], channels innermost."""
    batch, channels, height, width = latent.shape
    cells = latent.reshape(batch, channels, height // patch, patch, width // patch, patch)
    return cells.permute(0, 2, 4, 3, 5, 1).reshape(batch, -1, patch * patch * channels)


def image_channels_last(tokens: torch.Tensor, height: int, width: int, patch: int = PATCH) -> torch.Tensor:
    """Return patches [B, T, p * p * C], channels innermost, as a latent [B, C, h, w] of this height and width."""
    cells = tokens.view(tokens.shape[0], height // patch, width // patch, patch, patch, -1)
    return cells.permute(0, 5, 1, 3, 2, 4).reshape(tokens.shape[0], -1, height, width)


def tokens_of(cells: torch.Tensor) -> torch.Tensor:
    """Return embedded patches [B, D, (F,) rows, columns] as tokens [B, T, D].

    On a GPU the channels become neighbours in memory: norms would copy the tokens each time, and sums keep the layout
    through all blocks. On a CPU they stay as they are, since the rounding of 16-bit products depends on the layout.
    """
    tokens = cells.flatten(2).transpose(1, 2)
    return tokens if tokens.is_cpu else tokens.contiguous()


def patches_channels_first(image: torch.Tensor, patch: int) -> torch.Tensor:
    """Return the patches of an image [B, C, H, W] as tokens [B, T, C * p * p], channels outermost."""
    batch, channels, height, width = image.shape
    cells = image.reshape(batch, channels, height // patch, patch, width // patch, patch)
    return cells.permute(0, 2, 4, 1, 3, 5).reshape(batch, -1, channels * patch * patch)


def image_channels_first(tokens: torch.Tensor, height: int, width: int, patch: int) -> torch.Tensor:
    """Return patches [B, T, C * p * p], channels outermost, as an image [B, C, H, W]."""
    cells = tokens.view(tokens.shape[0], height // patch, width // patch, -1, patch, patch)
    return cells.permute(0, 3, 1, 4, 2, 5).reshape(tokens.shape[0], -1, height, width)
