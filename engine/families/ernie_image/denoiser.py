"""The inputs of ERNIE-Image beside the latent: the text."""

from __future__ import annotations

from darkroom.engine.families.joint_text_denoiser import TextTokensDenoiser


class ErnieImageDenoiser(TextTokensDenoiser):
    """ERNIE-Image, which custom nodes find by its name in ComfyUI."""

    comfy_name = "ErnieImage"
