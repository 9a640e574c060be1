"""The denoiser of Chroma."""

from __future__ import annotations

from engine.families.chroma.guidance_denoiser import DistilledGuidanceDenoiser


class ChromaDenoiser(DistilledGuidanceDenoiser):
    """Chroma, which draws in latents."""

    comfy_name = "Chroma"
