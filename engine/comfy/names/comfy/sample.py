"""`comfy.sample`: sampling a latent with a MODEL."""

from __future__ import annotations

from darkroom.engine.comfy.replaceable_names import bound
from darkroom.engine.diffusion import ksampler, noise

fix_empty_latent_channels = bound(ksampler.fix_empty_latent_channels)
prepare_noise = bound(noise.prepare_noise)
prepare_empty_noise = noise.prepare_empty_noise
sample = bound(ksampler.sample)
sample_custom = bound(ksampler.sample_custom)
