"""`comfy_extras.nodes_lt`: masks and guides of latents of videos."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from darkroom.engine.families.ltx_video.nodes.guides import guide_places
from darkroom.engine.families.ltx_video.nodes.noise_masks import noise_mask_of as get_noise_mask
from darkroom.engine.nodes.sockets import Conditioning

__all__ = ["get_keyframe_idxs", "get_noise_mask"]


def get_keyframe_idxs(cond: Conditioning, latent_shape: Sequence[int] | None = None) -> tuple[torch.Tensor | None, int]:
    """Return the places [1, 3, K, 2] of the guides of a conditioning, and the number of their frames."""
    places = guide_places(cond)
    if places is None:
        return None, 0
    if latent_shape is not None and len(latent_shape) == 5:
        return places, places.shape[2] // (latent_shape[-2] * latent_shape[-1])
    return places, int(torch.unique(places[:, 0, :, 0]).shape[0])
