"""The network of Stable Zero123: an image's latent beside the noise, and one token, its embedding and the camera."""

from __future__ import annotations

from typing import Any

import torch

from darkroom.engine.diffusion.conditions import (
    BatchedInput,
    CrossAttentionInput,
    NoiseShapedInput,
    spread_to_batch_size,
)
from darkroom.engine.diffusion.denoiser import Denoiser, fit


class ViewDenoiser(Denoiser):
    """A network that projects tokens [B, T, D] which are wider than its own: those with a camera."""

    comfy_name = "Stable_Zero123"

    def extra_conds(self, **kwargs: Any) -> dict[str, BatchedInput]:
        noise, device = kwargs["noise"], kwargs["device"]  # noise [B, C, h, w]
        image = kwargs.get("concat_latent_image")  # unscaled
        image = torch.zeros_like(noise) if image is None else image.to(device)
        image = image if image.shape[1:] == noise.shape[1:] else fit(image, noise)
        inputs: dict[str, BatchedInput] = {"c_concat": NoiseShapedInput(spread_to_batch_size(image, noise.shape[0]))}
        tokens = kwargs.get("cross_attn")
        if tokens is not None:
            inputs["c_crossattn"] = CrossAttentionInput(self._projected(tokens.to(device)))
        return inputs

    def _projected(self, tokens: torch.Tensor) -> torch.Tensor:
        network: Any = self.diffusion_model
        if tokens.shape[-1] == network.config.context_dim:
            return tokens
        projected: torch.Tensor = network.cc_projection(tokens.to(self.compute_dtype))
        return projected
