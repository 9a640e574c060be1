"""The channel of networks that continue images: which cells of a video are given. Those of Cosmos, 1 and 2."""

from __future__ import annotations

from typing import Any

import torch

from darkroom.engine.diffusion.conditions import spread_to_batch_size
from darkroom.engine.diffusion.denoiser import fit

GIVEN = "mask_inverted"  # ComfyUI's name of the channel


def given_cells(**kwargs: Any) -> torch.Tensor:
    """Return the channel [B, 1, F, h, w], 1 where cells are given; without a mask nothing is.

    The inputs are those of `Denoiser.concat_cond`.
    """
    noise: torch.Tensor = kwargs["noise"]
    mask: torch.Tensor | None = kwargs.get("concat_mask", kwargs.get("denoise_mask"))
    if mask is None:
        return torch.zeros_like(noise)[:, :1]
    drawn = mask[:, :1].reshape(-1, 1, *mask.shape[-3:]).to(kwargs["device"])
    if drawn.shape[-2:] != noise.shape[-2:]:
        flat = fit(drawn.transpose(1, 2).flatten(0, 1), noise)
        drawn = flat.view(drawn.shape[0], -1, *flat.shape[1:]).transpose(1, 2)
    return 1.0 - spread_to_batch_size(drawn.round(), noise.shape[0])
