"""`comfy_extras.nodes_sag`: the blur of self-attention guidance."""

from __future__ import annotations

import torch

from darkroom.engine.comfy.replaceable_names import bound
from darkroom.engine.diffusion.attention_guidance import blurred_where_attended, gaussian_blurred

create_blur_map = bound(blurred_where_attended)


def gaussian_blur_2d(img: torch.Tensor, kernel_size: int, sigma: float) -> torch.Tensor:
    """Blur [B, C, h, w] over a square of so many cells, mirrored at the borders."""
    return gaussian_blurred(img, sigma, kernel_size)
