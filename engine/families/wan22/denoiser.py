"""The inputs of Wan 2.2 5B beside the latent: as Wan's, and which latent frames are given. `B` batch, `f` frames."""

from __future__ import annotations

from typing import Any

import torch

from darkroom.engine.diffusion.conditions import BatchedInput, RegularInput
from darkroom.engine.families.wan.video_denoiser import VideoDenoiser


class FramesVideoDenoiser(VideoDenoiser):
    """Wan 2.2 5B, which sees given frames at noise level 0."""

    comfy_name = "WAN22"
    always_masked = True

    def extra_conds(self, **kwargs: Any) -> dict[str, BatchedInput]:
        inputs = super().extra_conds(**kwargs)
        if kwargs.get("denoise_mask") is not None:
            inputs["denoise_mask"] = RegularInput(kwargs["denoise_mask"])
        return inputs

    def process_timestep(self, timestep: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        """Return a noise level for each latent frame [B, f], or for all of them [B] where everything is painted."""
        mask: torch.Tensor | None = kwargs.get("denoise_mask")  # [B, C, f, h, w]
        if mask is None:
            return timestep
        return mask.mean(dim=(1, 3, 4)) * timestep[:, None]

    def scale_latent_inpaint(
        self, sigma: torch.Tensor, noise: torch.Tensor, latent_image: torch.Tensor, **kwargs: Any
    ) -> torch.Tensor:
        """Return the frames themselves: what is kept is seen without noise."""
        return latent_image
