"""The latents of a video with its audio."""

from __future__ import annotations

import torch

from darkroom.engine.diffusion.nested_latent import nested
from darkroom.engine.families.minimax_h3.sizes import audio_frames, frames_of
from darkroom.engine.families.minimax_h3.vae_files import MiniMaxH3LatentFormat

VIDEO_CHANNELS, AUDIO_CHANNELS, SIDES = 24, 32, 2


class AudioVideoLatentFormat(MiniMaxH3LatentFormat):
    """Latents of a video [B, 24, t, h, w] and its audio [B, 32, 2, T], nested. Channels are those of the larger one."""

    latent_channels = AUDIO_CHANNELS
    stream_channels = (VIDEO_CHANNELS, AUDIO_CHANNELS)
    takes_streams = True

    def fix_empty_latent(self, latent: torch.Tensor) -> torch.Tensor:
        """Return an empty latent [B, C, t, h, w] of a video, with that of its audio."""
        batch, _, frames, height, width = latent.shape
        video = latent.new_zeros(batch, VIDEO_CHANNELS, frames, height, width)
        audio = latent.new_zeros(batch, AUDIO_CHANNELS, SIDES, audio_frames(frames_of(frames)))
        return nested([video, audio])
