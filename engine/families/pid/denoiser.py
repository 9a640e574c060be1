"""The inputs of PiD beside the noisy image: the text, and the latent whose image it generates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from darkroom.engine.diffusion.conditions import BatchedInput, RegularInput
from darkroom.engine.diffusion.latent_window import LatentWindow
from darkroom.engine.families.pid.latent_projection import WITHOUT_LATENT, check_latent
from darkroom.engine.families.pixeldit.denoiser import PixelDiTDenoiser

LATENT, SIGMA = "lq_latent", "degrade_sigma"  # ComfyUI's options of CONDITIONING


class PiDDenoiser(PixelDiTDenoiser):
    """PiD, which custom nodes find by its name in ComfyUI."""

    comfy_name = "PiD"
    uncast_inputs = (SIGMA,)

    def extra_conds(self, **kwargs: Any) -> dict[str, BatchedInput]:
        """Return the network's inputs.

        Raises ValueError for a positive conditioning without a latent, and for a latent of another network. A negative
        one is not read with cfg 1, and the network refuses it otherwise.
        """
        inputs = super().extra_conds(**kwargs)
        latent: torch.Tensor | None = kwargs.get(LATENT)
        sigma: torch.Tensor | None = kwargs.get(SIGMA)
        if latent is None or sigma is None:
            if kwargs.get("prompt_type") == "positive":
                raise ValueError(WITHOUT_LATENT)
            return inputs
        network: Any = self.diffusion_model
        check_latent(tuple(latent.shape), network.config)
        device = kwargs["device"]
        inputs[LATENT], inputs[SIGMA] = RegularInput(latent.to(device)), RegularInput(sigma.to(device))
        return inputs

    def cut_for_window(
        self, name: str, given: BatchedInput, window: LatentWindow, retained: Sequence[int]
    ) -> BatchedInput | None:
        """Return the cells of the latent below a window of the image's rows or columns; None for other inputs."""
        if name != LATENT or window.dim >= given.cond.ndim:
            return None
        latent: torch.Tensor = given.cond
        network: Any = self.diffusion_model
        cells = sorted({place // network.config.cell_px for place in window.index_list})
        kept = [cell for cell in cells if cell < latent.shape[window.dim]]
        if not kept:
            return None
        return RegularInput(latent.index_select(window.dim, torch.tensor(kept, device=latent.device)))
