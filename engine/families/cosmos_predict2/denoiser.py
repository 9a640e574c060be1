"""Cosmos-Predict2's time of each frame, where a mask keeps parts of the latent, and the mask as a further channel."""

from __future__ import annotations

from typing import Any

import torch

from darkroom.engine.diffusion.conditions import BatchedInput, ConstantInput, RegularInput
from darkroom.engine.families.cosmos_predict2.given_cells import given_cells
from darkroom.engine.families.joint_text_denoiser import TextTokensDenoiser


class CosmosPredict2Denoiser(TextTokensDenoiser):
    """A network that sees what a mask keeps at time 0, as undisturbed latents."""

    comfy_name = "CosmosPredict2"

    def extra_conds(self, **kwargs: Any) -> dict[str, BatchedInput]:
        inputs = super().extra_conds(**kwargs)
        mask = kwargs.get("concat_mask", kwargs.get("denoise_mask"))
        if mask is not None:
            inputs["denoise_mask"] = RegularInput(mask)
        inputs["fps"] = ConstantInput(kwargs.get("frame_rate"))
        return inputs

    def process_timestep(
        self, timestep: torch.Tensor, denoise_mask: torch.Tensor | None = None, **kwargs: object
    ) -> torch.Tensor:
        """Return the times [B, F], by the share of each frame that `denoise_mask` [B, C, F, h, w] lets be painted.

        Without a mask of frames they are those given, [B].
        """
        if denoise_mask is None or denoise_mask.ndim <= 4:
            return timestep
        shares = denoise_mask.mean(dim=[1, 3, 4])
        return timestep[:, None] * shares

    def scale_latent_inpaint(
        self, sigma: torch.Tensor, noise: torch.Tensor, latent_image: torch.Tensor, **kwargs: object
    ) -> torch.Tensor:
        """Return the image without noise, as it is before the input is scaled to its noise level."""
        level = sigma.reshape([sigma.shape[0]] + [1] * (noise.ndim - 1))
        return latent_image / (1.0 - level / (level + 1))


class CosmosPredict2VideoDenoiser(CosmosPredict2Denoiser):
    """A network that continues images: it reads which cells are given (1) and which it draws (0)."""

    def concat_cond(self, **kwargs: Any) -> torch.Tensor:
        """Return the further channel [B, 1, F, h, w] of the network; without a mask nothing is given."""
        return given_cells(**kwargs)
