"""`comfy_extras.nodes_mask`: pasting of tensors."""

from __future__ import annotations

import torch

from darkroom.engine.comfy.missing_symbol import not_supported
from darkroom.engine.images.compositing import paste


def composite(
    destination: torch.Tensor,
    source: torch.Tensor,
    x: int,
    y: int,
    mask: torch.Tensor | None = None,
    multiplier: int = 8,
    resize_source: bool = False,
) -> torch.Tensor:
    """Paste `source` into `destination` [B, C, H, W] in place at (`x`, `y`), which are `multiplier` to a cell."""
    if x < 0 or y < 0:
        raise not_supported("comfy_extras.nodes_mask.composite at a negative place")
    if resize_source:
        source = torch.nn.functional.interpolate(source, size=destination.shape[-2:], mode="bilinear")
    return destination.copy_(paste(destination, source, x // multiplier, y // multiplier, mask))
