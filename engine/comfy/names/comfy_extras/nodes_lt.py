"""`comfy_extras.nodes_lt`: masks and guides of latents of videos."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from darkroom.engine.nodes.sockets import Conditioning, Latent

PLACES = "keyframe_idxs"  # of the guides [1, 3, K, 2], in the options of a conditioning
GUIDES = "guide_attention_entries"  # one a guide, with the shape [f, h, w] of its latent


def get_noise_mask(latent: Latent) -> torch.Tensor:
    """Return a copy of the mask of a latent [B, C, f, h, w], ones [B, 1, f, 1, 1] where it has none."""
    mask = latent.get("noise_mask")
    if mask is not None:
        return mask.clone()
    samples = latent["samples"]
    return torch.ones(samples.shape[0], 1, samples.shape[2], 1, 1, device=samples.device)


def get_keyframe_idxs(cond: Conditioning, latent_shape: Sequence[int] | None = None) -> tuple[torch.Tensor | None, int]:
    """Return the positions [1, 3, K, 2] of the guides of a conditioning, and the number of their frames."""
    places = next((options[PLACES] for _, options in cond if options.get(PLACES) is not None), None)
    if places is None:
        return None, 0
    if latent_shape is not None and len(latent_shape) == 5:
        return places, places.shape[2] // (latent_shape[-2] * latent_shape[-1])
    guides = next((options[GUIDES] for _, options in cond if options.get(GUIDES)), None)
    if guides:
        return places, sum(guide["latent_shape"][0] for guide in guides)
    # Guides at the same frame count as one here, as in ComfyUI: nothing else tells them apart.
    return places, int(torch.unique(places[:, 0, :, 0]).shape[0])
