"""The denoiser of PixelDiT."""

from __future__ import annotations

from darkroom.engine.families.joint_text_denoiser import TextTokensDenoiser


class PixelDiTDenoiser(TextTokensDenoiser):
    """PixelDiT, which custom nodes find by its name in ComfyUI."""

    comfy_name = "PixelDiTT2I"
