"""`comfy.latent_formats`: scaling of latents, one class for each kind that a family has."""

from __future__ import annotations

from darkroom.engine.diffusion.latent_format import LatentFormat
from darkroom.engine.diffusion.latent_format import PlaygroundLatentFormat as SDXL_Playground_2_5
from darkroom.engine.families.registry import families

OF_FAMILIES = {family.comfyui.latent_format: family.latent_format for family in families()}
__all__ = ["LatentFormat", "SDXL_Playground_2_5", *OF_FAMILIES]  # noqa: PLE0604 - they are texts

globals().update(OF_FAMILIES)
