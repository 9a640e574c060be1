"""Images as SigLIP 2's NaFlex form reads them: of whole patches in their proportions, 8 bits a channel, normalised."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch.nn import functional

LARGEST_SCALE, PRECISION = 100.0, 1e-5  # of the search for a size


def naflex_size(height: int, width: int, patch_px: int, most_patches: int) -> tuple[int, int]:
    """Return height and width in pixels, whole patches, of an image scaled to at most that many patches.

    The scale is searched by halving, as transformers' image processor for SigLIP 2 does.
    """

    def scaled(scale: float) -> tuple[int, int]:
        rows, columns = (max(1, math.ceil(side * scale / patch_px)) for side in (height, width))
        return rows, columns

    low, high = PRECISION / 10, LARGEST_SCALE
    while high - low >= PRECISION:
        middle = (low + high) / 2
        rows, columns = scaled(middle)
        low, high = (middle, high) if rows * columns <= most_patches else (low, middle)
    rows, columns = scaled(low)
    return rows * patch_px, columns * patch_px


def naflex_pixels(
    image: torch.Tensor, patch_px: int, most_patches: int, mean: Sequence[float], deviation: Sequence[float]
) -> torch.Tensor:
    """Convert IMAGE [B, H, W, C] of 0..1 to [B, 3, H', W'] of whole patches. An alpha channel is left out."""
    pixels = image[..., :3].movedim(-1, 1)
    height, width = pixels.shape[2:]
    size = naflex_size(height, width, patch_px, most_patches)
    pixels = functional.interpolate(pixels, size=size, mode="bilinear", antialias=True)
    pixels = (255.0 * pixels).clip(0, 255).round() / 255.0
    average, spread = (torch.tensor(values).to(pixels).view(-1, 1, 1) for values in (mean, deviation))
    return (pixels - average) / spread
