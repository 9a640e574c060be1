"""`comfy.ldm.common_dit`: what transformers of images share."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn import functional

from darkroom.engine.comfy.names.comfy.rmsnorm import rms_norm

__all__ = ["pad_to_patch_size", "rms_norm"]


def pad_to_patch_size(
    img: torch.Tensor, patch_size: Sequence[int] = (2, 2), padding_mode: str = "circular"
) -> torch.Tensor:
    """Pad the ends of a latent's dimensions behind the channels to multiples of the patch."""
    missing = [-size % patch for size, patch in zip(img.shape[2:], patch_size, strict=False)]
    sides = [side for count in reversed(missing) for side in (0, count)]
    return functional.pad(img, sides, mode=padding_mode)
