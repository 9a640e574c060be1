"""The VAEs of LTX-2 as its family has them: of videos (LTX-Video's, and 2.4's), of audio, and the upsampler."""

from __future__ import annotations

from darkroom.engine.families.ltx2.audio_vae_files import AUDIO_AUTOENCODER
from darkroom.engine.families.ltx2.diffusion_vae_files import DIFFUSION_AUTOENCODER
from darkroom.engine.families.ltx2.upsampler_files import LATENT_UPSAMPLER
from darkroom.engine.families.ltx_video.vae_files import AUTOENCODER

__all__ = ["AUDIO_AUTOENCODER", "AUTOENCODER", "DIFFUSION_AUTOENCODER", "LATENT_UPSAMPLER"]
