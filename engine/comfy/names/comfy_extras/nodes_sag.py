"""`comfy_extras.nodes_sag`: the blur of self-attention guidance."""

from __future__ import annotations

import torch

from darkroom.engine.diffusion.attention_guidance import gaussian_blurred


def gaussian_blur_2d(img: torch.Tensor, kernel_size: int, sigma: float) -> torch.Tensor:
    """Blur [B, C, h, w] over a square of so many cells, mirrored at the borders."""
    return gaussian_blurred(img, sigma, kernel_size)
