"""The denoiser of Chroma Radiance."""

from __future__ import annotations

from darkroom.engine.families.chroma.denoiser import DistilledGuidanceDenoiser


class ChromaRadianceDenoiser(DistilledGuidanceDenoiser):
    """Chroma Radiance, which draws in pixels."""

    comfy_name = "ChromaRadiance"
