"""`comfy.latent_formats`: how latents are scaled."""

from __future__ import annotations

from engine.diffusion.latent_format import Sd15LatentFormat as SD15

LatentFormat = SD15

__all__ = ["SD15", "LatentFormat"]
