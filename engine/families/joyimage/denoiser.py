"""The inputs of JoyAI-Image beside the latent: the text, and reference images."""

from __future__ import annotations

from typing import Any

from darkroom.engine.diffusion.conditions import BatchedInput
from darkroom.engine.families.language_denoiser import ReferencesDenoiser


class JoyImageDenoiser(ReferencesDenoiser):
    """JoyAI-Image, whose latents and reference images are videos [B, C, F, h, w], mostly of one frame.

    Raises ValueError for reference images that another family's VAE made.
    """

    comfy_name = "JoyImage"

    def extra_conds(self, **kwargs: Any) -> dict[str, BatchedInput]:
        config: Any = self.diffusion_model.config
        for index, latent in enumerate(kwargs.get("reference_latents") or ()):
            if latent.ndim != 5 or latent.shape[1] != config.in_channels:
                raise ValueError(
                    f"reference_latents[{index}]: its VAE is not the model's; got a latent of shape "
                    f"{tuple(latent.shape)}, expected {config.in_channels} channels and frames"
                )
        return super().extra_conds(**kwargs)
