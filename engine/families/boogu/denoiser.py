"""The inputs of Boogu-Image beside the latent: the text, and reference images."""

from __future__ import annotations

from typing import Any

from darkroom.engine.diffusion.conditions import BatchedInput
from darkroom.engine.families.references_denoiser import ReferencesDenoiser


class BooguDenoiser(ReferencesDenoiser):
    """Boogu-Image. Raises ValueError for reference images of another VAE, and for more than it distinguishes."""

    comfy_name = "Boogu"

    def extra_conds(self, **kwargs: Any) -> dict[str, BatchedInput]:
        config: Any = self.diffusion_model.config
        references = list(kwargs.get("reference_latents") or ())
        if len(references) > config.num_references:
            raise ValueError(
                f"reference_latents: too many; got {len(references)}, expected at most {config.num_references}"
            )
        return super().extra_conds(**kwargs)
