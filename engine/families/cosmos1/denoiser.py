"""Cosmos 1's frame rate, and the given parts of a video that a mask keeps."""

from __future__ import annotations

from typing import Any

import torch

from darkroom.engine.diffusion.conditions import BatchedInput, ConstantInput
from darkroom.engine.families.cosmos_predict2.given_cells import given_cells
from darkroom.engine.families.joint_text_denoiser import TextTokensDenoiser


class CosmosDenoiser(TextTokensDenoiser):
    """A network that sees what a mask keeps without noise."""

    comfy_name = "CosmosVideo"

    def extra_conds(self, **kwargs: Any) -> dict[str, BatchedInput]:
        inputs = super().extra_conds(**kwargs)
        inputs["fps"] = ConstantInput(kwargs.get("frame_rate"))
        return inputs

    def scale_latent_inpaint(
        self, sigma: torch.Tensor, noise: torch.Tensor, latent_image: torch.Tensor, **kwargs: object
    ) -> torch.Tensor:
        """Return the image without noise, as it is before the input is scaled to its noise level."""
        level = sigma.reshape([sigma.shape[0]] + [1] * (noise.ndim - 1))
        deviation: float = self.model_sampling.sigma_data
        scaled: torch.Tensor = latent_image / deviation * (level**2 + deviation**2) ** 0.5
        return scaled


class CosmosImageDenoiser(CosmosDenoiser):
    """A network that continues images: it reads which cells are given (1) and which it draws (0)."""

    def concat_cond(self, **kwargs: Any) -> torch.Tensor:
        """Return the further channel [B, 1, F, h, w] of the network; without a mask nothing is given."""
        return given_cells(**kwargs)
