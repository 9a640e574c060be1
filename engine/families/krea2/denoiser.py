"""The inputs of Krea 2 beside the latent: the text, and reference images."""

from __future__ import annotations

from darkroom.engine.families.qwen_image.image_denoiser import ImageVideoDenoiser


class Krea2Denoiser(ImageVideoDenoiser):
    """Krea 2, which sees reference images only where `FluxKontextMultiReferenceLatentMethod` says how."""

    comfy_name = "Krea2"
