"""The inputs of Mage-Flow beside the latent: the text, and reference images."""

from __future__ import annotations

from typing import Any

import torch

from darkroom.engine.families.qwen_image.image_denoiser import ImageVideoDenoiser


class MageFlowDenoiser(ImageVideoDenoiser):
    """Mage-Flow, which custom nodes find by its name in ComfyUI."""

    comfy_name = "MageFlow"

    def process_timestep(self, timestep: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        """Return the times rounded to bfloat16, as in the network's training."""
        return timestep.to(torch.bfloat16)
