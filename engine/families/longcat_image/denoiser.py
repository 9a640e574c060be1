"""The inputs of LongCat-Image beside the latent: the text, and reference images."""

from __future__ import annotations

from darkroom.engine.families.references_denoiser import ReferencesDenoiser


class LongCatImageDenoiser(ReferencesDenoiser):
    """LongCat-Image, told by a node how it sees reference images."""

    comfy_name = "LongCatImage"
