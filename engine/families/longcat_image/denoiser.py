"""The inputs of LongCat-Image beside the latent: the text, and reference images."""

from __future__ import annotations

from typing import Any

from darkroom.engine.diffusion.conditions import BatchedInput, ConstantInput
from darkroom.engine.families.language_denoiser import ReferencesDenoiser


class LongCatImageDenoiser(ReferencesDenoiser):
    """LongCat-Image, told by a node how it sees reference images."""

    comfy_name = "LongCatImage"

    def extra_conds(self, **kwargs: Any) -> dict[str, BatchedInput]:
        """Return the network's inputs. Raises ValueError for reference images of another family's VAE."""
        channels = self.latent_format.latent_channels
        for latent in kwargs.get("reference_latents") or ():
            if latent.ndim != 4 or latent.shape[1] != channels:
                raise ValueError(
                    f"reference latents: a latent of another VAE than the model's; got shape {list(latent.shape)}, "
                    f"expected {channels} channels"
                )
        inputs = super().extra_conds(**kwargs)
        method = kwargs.get("reference_latents_method")
        if "ref_latents" in inputs and method is not None:
            inputs["ref_latents_method"] = ConstantInput(method)
        return inputs
