"""The denoiser of Chroma Radiance."""

from __future__ import annotations

from engine.families.chroma.denoiser import DistilledGuidanceDenoiser


class ChromaRadianceDenoiser(DistilledGuidanceDenoiser):
    """Chroma Radiance, which draws in pixels."""

    comfy_name = "ChromaRadiance"
