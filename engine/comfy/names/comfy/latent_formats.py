"""`comfy.latent_formats`: scaling of latents, one class for each kind that a family has."""

from __future__ import annotations

from darkroom.engine.diffusion.latent_format import LatentFormat
from darkroom.engine.families.registry import families

__all__ = ["LatentFormat", *(family.comfyui.latent_format for family in families())]  # noqa: PLE0604 - they are texts

globals().update({family.comfyui.latent_format: family.latent_format for family in families()})
