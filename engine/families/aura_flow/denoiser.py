"""AuraFlow's denoiser: text and latent are its only inputs."""

from __future__ import annotations

from darkroom.engine.families.joint_text_denoiser import TextTokensDenoiser


class AuraFlowDenoiser(TextTokensDenoiser):
    """AuraFlow, under ComfyUI's name."""

    comfy_name = "AuraFlow"
