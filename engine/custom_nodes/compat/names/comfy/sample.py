"""`comfy.sample`: sampling a latent with a MODEL."""

from __future__ import annotations

from engine.diffusion import ksampler, noise
from engine.diffusion.replaced import own

fix_empty_latent_channels = own(ksampler.fix_empty_latent_channels)
prepare_noise = own(noise.prepare_noise)
sample = own(ksampler.sample)
sample_custom = own(ksampler.sample_custom)
