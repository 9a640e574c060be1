"""The inputs of JoyAI-Image beside the latent: the text, and reference images."""

from __future__ import annotations

from typing import Any

from darkroom.engine.diffusion.conditions import BatchedInput
from darkroom.engine.families.references_denoiser import ReferencesDenoiser


class JoyImageDenoiser(ReferencesDenoiser):
    """JoyAI-Image, whose latents and reference images are videos [B, C, F, h, w], mostly of one frame.

    Raises ValueError for reference images that another family's VAE made.
    """

    comfy_name = "JoyImage"

    def extra_conds(self, **kwargs: Any) -> dict[str, BatchedInput]:
        for index, latent in enumerate(kwargs.get("reference_latents") or ()):
            if latent.ndim != 5:
                raise ValueError(
                    f"reference_latents[{index}]: no video; got a latent of shape {list(latent.shape)}, "
                    "expected one with frames"
                )
        return super().extra_conds(**kwargs)
