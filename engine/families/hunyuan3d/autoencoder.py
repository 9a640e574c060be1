"""The decoder of Hunyuan3D 2's shapes: its files, and the scale of its latents."""

from __future__ import annotations

from engine.architectures.shape_vae import MARK, ShapeVae, ShapeVaeConfig, shape_vae_config
from engine.diffusion.latent_format import LatentFormat
from engine.families.parts.vae_network import vae_network

LATENT_CHANNELS = 64
FULL = ShapeVaeConfig()
SMALL = ShapeVaeConfig(width=64, num_layers=2, head_width=16)  # for tests


class ShapeLatentFormat(LatentFormat):
    """Latents [B, 64, N] of the larger networks."""

    latent_channels = LATENT_CHANNELS
    latent_dimensions = 1
    scale_factor = 0.9990943042622529


class SmallShapeLatentFormat(ShapeLatentFormat):
    """Latents [B, 64, N] of the mini network."""

    scale_factor = 1.0188137142395404


AUTOENCODER = vae_network(MARK, shape_vae_config, ShapeVae, ("float16", "bfloat16"))
