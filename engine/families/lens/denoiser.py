"""The inputs of Lens beside the latent: the text alone."""

from __future__ import annotations

from darkroom.engine.families.joint_text_denoiser import TextTokensDenoiser


class LensDenoiser(TextTokensDenoiser):
    """Lens, which custom nodes find by its name in ComfyUI."""

    comfy_name = "Lens"
