"""LATENT_UPSCALE_MODEL: a network that enlarges latents, with the members that custom nodes use."""

from __future__ import annotations

import torch

from darkroom.engine.diffusion.stored_dtype import stored_dtype
from darkroom.engine.models.network_value import NetworkValue
from darkroom.engine.models.weight_handle import Network


class LatentUpscaler(NetworkValue):
    """A network that enlarges latents."""

    @property
    def model(self) -> Network:
        """The network itself (`engine/families/ltx2/upsampler.py`)."""
        return self.patcher.model

    def model_dtype(self) -> torch.dtype:
        """Return the type that it computes in."""
        return stored_dtype(self.model)
