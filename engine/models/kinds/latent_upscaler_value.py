"""LATENT_UPSCALE_MODEL: a network that enlarges latents, with the members that custom nodes use."""

from __future__ import annotations

import torch

from darkroom.engine.diffusion.stored_dtype import stored_dtype
from darkroom.engine.models.network_value import NetworkAsModel


class LatentUpscaler(NetworkAsModel):
    """A network that enlarges latents (`engine/families/ltx2/upsampler.py`)."""

    def model_dtype(self) -> torch.dtype:
        """Return the type that it computes in."""
        return stored_dtype(self.model)
