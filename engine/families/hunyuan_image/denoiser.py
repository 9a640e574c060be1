"""The denoiser of HunyuanImage 2.1."""

from __future__ import annotations

from darkroom.engine.families.hunyuan_image.glyph_denoiser import GlyphDenoiser


class HunyuanImageDenoiser(GlyphDenoiser):
    """HunyuanImage 2.1, or its distilled form."""

    comfy_name = "HunyuanImage21"
