"""`comfy.sampler_helpers`: conditioning and masks as samplers take them."""

from __future__ import annotations

from engine.diffusion import conditions, sample
from engine.diffusion.replaced import own

convert_cond = own(conditions.convert_conditioning)
prepare_mask = own(sample.prepare_mask)
