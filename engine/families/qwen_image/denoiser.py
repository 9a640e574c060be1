"""The inputs of Qwen-Image beside the latent: the text, and reference images."""

from __future__ import annotations

from typing import Any

from darkroom.engine.families.qwen_image.image_denoiser import ImageVideoDenoiser


class QwenImageDenoiser(ImageVideoDenoiser):
    """Qwen-Image, which custom nodes find by its name in ComfyUI."""

    comfy_name = "QwenImage"

    @property
    def takes_frames(self) -> bool:
        """True for a network that draws an image in layers."""
        config: Any = self.diffusion_model.config
        draws_layers: bool = config.draws_layers
        return draws_layers
