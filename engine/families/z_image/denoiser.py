"""The inputs of Z-Image beside latent and text: none."""

from __future__ import annotations

from typing import Any

from darkroom.engine.diffusion.conditions import BatchedInput
from darkroom.engine.families.joint_text_denoiser import TextTokensDenoiser


class ZImageDenoiser(TextTokensDenoiser):
    """Z-Image, which reads a prompt alone."""

    def extra_conds(self, **kwargs: Any) -> dict[str, BatchedInput]:
        """Return the network's inputs. Raises ValueError for reference images, which would be ignored."""
        references = kwargs.get("reference_latents")
        if references:
            raise ValueError(
                f"reference latents: this network reads a prompt alone; got {len(references)}, expected none"
            )
        return super().extra_conds(**kwargs)
