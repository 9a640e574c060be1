"""The noise mask of a latent of a video, which says how much each of its frames is painted over."""

from __future__ import annotations

import torch

from darkroom.engine.nodes.sockets import Latent


def noise_mask_of(latent: Latent) -> torch.Tensor:
    """Return the mask of a latent, of its own [B, 1, f, 1, 1] where it has none."""
    mask = latent.get("noise_mask")
    if mask is not None:
        return mask.clone()
    samples = latent["samples"]
    return torch.ones(samples.shape[0], 1, samples.shape[2], 1, 1)
