"""`comfy.sampler_helpers`: conditioning and masks as samplers take them."""

from __future__ import annotations

from engine.diffusion.conditions import convert_conditioning as convert_cond
from engine.diffusion.sample import prepare_mask

__all__ = ["convert_cond", "prepare_mask"]
