"""The inputs of Qwen-Image beside the latent: the text, and reference images."""

from __future__ import annotations

from darkroom.engine.families.qwen_image.image_denoiser import ImageVideoDenoiser


class QwenImageDenoiser(ImageVideoDenoiser):
    """Qwen-Image, which custom nodes find by its name in ComfyUI."""

    comfy_name = "QwenImage"
