"""The autoencoder of videos of LTX-2.4: LTX-2's encoder, and a decoder that draws the pixels (`diffusion_decoder.py`).

Videos `[B, 3, F, H, W]` in -1..1 of 1 + 8n frames, latents `[B, C, 1 + n, H/32, W/32]` standardised by statistics that
the file holds.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from darkroom.engine.families.ltx2.diffusion_decoder import DiffusionDecoder, DiffusionDecoderConfig
from darkroom.engine.families.ltx_video.vae import LtxVideoEncoder, LtxVideoVaeConfig
from darkroom.engine.families.ltx_video.vae_layers import ChannelStatistics

# Values in memory for a pixel that is encoded, for a latent cell of each frame that is decoded (ComfyUI's).
ENCODE_VALUES, DECODE_VALUES = 80, 1700 * 8 * 8
MEASURED_CHANNELS = 256
NOISE_SEED = 0  # the pixels are drawn from the same noise each time


@dataclass(frozen=True, slots=True)
class DiffusionVaeConfig:
    """Configuration of the two halves; of the first one's only the encoder."""

    encoder: LtxVideoVaeConfig
    decoder: DiffusionDecoderConfig


class DiffusionVae(nn.Module):
    """The autoencoder. `frames_ratio` frames of a video, behind its first one, become one latent frame."""

    latent_dim = 3
    works_on_whole_videos = True

    def __init__(self, config: DiffusionVaeConfig) -> None:
        super().__init__()
        self.config = config
        self.latent_channels = config.decoder.latent_channels
        self.frames_ratio, self.downscale_ratio, _ = config.encoder.ratio
        self.encoder, self.decoder = LtxVideoEncoder(config.encoder), DiffusionDecoder(config.decoder)
        self.frames_encoded_at_once = self.encoder.frames_at_once
        self.per_channel_statistics = ChannelStatistics(self.latent_channels)

    @property
    def encode_bytes_per_pixel(self) -> int:
        """Bytes of working memory per pixel of each frame and byte of the dtype, for encoding."""
        return ENCODE_VALUES

    @property
    def decode_bytes_per_cell(self) -> int:
        """Bytes of working memory per latent cell of each frame and byte of the dtype, for decoding."""
        return DECODE_VALUES * self.config.decoder.channels // MEASURED_CHANNELS

    def encode(self, videos: torch.Tensor) -> torch.Tensor:
        """Return the mean of the posterior [B, C, 1 + n, h, w] of videos [B, 3, F, H, W], as `moments` reads them."""
        return self.per_channel_statistics.normalised(self.encoder.moments(videos)[:, : self.latent_channels])

    def decode(self, latents: torch.Tensor) -> torch.Tensor:
        """Return the frames [B, 3, 1 + 8n, H, W] of latents [B, C, 1 + n, h, w]."""
        frames = 1 + (latents.shape[2] - 1) * self.frames_ratio
        rows, columns = (cells * self.downscale_ratio for cells in latents.shape[3:])
        generator = torch.Generator(device=latents.device).manual_seed(NOISE_SEED)
        noise = torch.randn(
            latents.shape[0], 3, frames, rows, columns, generator=generator, dtype=latents.dtype, device=latents.device
        )
        out: torch.Tensor = self.decoder(self.per_channel_statistics.restored(latents), noise)
        return out
