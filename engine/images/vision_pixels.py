"""Images as CLIP's image encoder sees them: cut to a square, made small, 8 bits a channel, normalised."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn import functional

MEAN = (0.48145466, 0.4578275, 0.40821073)
DEVIATION = (0.26862954, 0.26130258, 0.27577711)


def vision_pixels(
    image: torch.Tensor,
    size_px: int = 224,
    mean: Sequence[float] = MEAN,
    deviation: Sequence[float] = DEVIATION,
    *,
    crop: bool = True,
) -> torch.Tensor:
    """Convert IMAGE [B, H, W, C] of 0..1 to [B, 3, size, size], normalised by the mean and deviation of the training.

    With `crop` the middle square is taken, without it the image is squeezed. An alpha channel is left out.
    """
    pixels = image[..., :3].movedim(-1, 1)
    height, width = pixels.shape[2:]
    if (height, width) != (size_px, size_px):
        scale = size_px / min(height, width)
        scaled = (round(scale * height), round(scale * width)) if crop else (size_px, size_px)
        pixels = functional.interpolate(pixels, size=scaled, mode="bicubic", antialias=True)
        top, left = (scaled[0] - size_px) // 2, (scaled[1] - size_px) // 2
        pixels = pixels[:, :, top : top + size_px, left : left + size_px]
    pixels = (255.0 * pixels).clip(0, 255).round() / 255.0
    per_channel = (torch.tensor(values).to(pixels).view(-1, 1, 1) for values in (mean, deviation))
    average, spread = per_channel
    return (pixels - average) / spread
