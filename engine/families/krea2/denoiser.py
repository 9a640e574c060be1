"""The inputs of Krea 2 beside the latent: the text, and reference pictures."""

from __future__ import annotations

from darkroom.engine.families.qwen_image.image_denoiser import PictureVideoDenoiser


class Krea2Denoiser(PictureVideoDenoiser):
    """Krea 2, which sees reference pictures only where `FluxKontextMultiReferenceLatentMethod` says how."""

    comfy_name = "Krea2"
