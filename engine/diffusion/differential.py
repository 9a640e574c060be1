"""Differential Diffusion: Levin and Fried 2023 (arXiv 2306.00950): a soft mask as when each cell thaws."""

from __future__ import annotations

import torch

from darkroom.engine.diffusion.options import Options


def thawed_mask(
    sigma: torch.Tensor, denoise_mask: torch.Tensor, extra_options: Options, strength: float
) -> torch.Tensor:
    """Return 1 where the mask has reached the share of timesteps that is left, else 0: `[B, C, h, w]`.

    With a `strength` between 0 and 1 it is blended with the soft mask; 0 counts as 1, as in ComfyUI.
    """
    sampling, levels = extra_options["model"].inner_model.model_sampling, extra_options["sigmas"]
    lowest = sampling.sigma_min.to(levels)
    last = torch.maximum(levels[-1], lowest)
    start, end, now = (sampling.timestep(level) for level in (levels[0], last, sigma[0]))
    threshold = (now - end) / (start - end)
    thawed: torch.Tensor = (denoise_mask >= threshold).to(denoise_mask.dtype)
    if 0 < strength < 1:
        return strength * thawed + (1 - strength) * denoise_mask
    return thawed
