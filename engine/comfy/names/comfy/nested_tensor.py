"""`comfy.nested_tensor`: latents of several streams."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from darkroom.engine.diffusion.nested_latent import NestedLatent

NestedTensor = NestedLatent


def cat_nested(tensors: Sequence[NestedLatent], dim: int = 0) -> NestedLatent:
    """Return nested latents joined stream by stream."""
    streams = zip(*(item.unbind() for item in tensors), strict=True)
    return NestedLatent([torch.cat(parts, dim=dim) for parts in streams])
