"""The decoder of Hunyuan3D 2's shapes: its files, and the scale of its latents."""

from __future__ import annotations

from darkroom.engine.diffusion.latent_format import LatentFormat
from darkroom.engine.families.hunyuan3d.vae import MARK, Hunyuan3dVae, Hunyuan3dVaeConfig, hunyuan3d_vae_config
from darkroom.engine.families.vae_files import vae_network

LATENT_CHANNELS = 64


class ShapeLatentFormat(LatentFormat):
    """Latents [B, 64, N] of the larger networks."""

    latent_channels = LATENT_CHANNELS
    latent_dimensions = 1
    scale_factor = 0.9990943042622529


class SmallShapeLatentFormat(ShapeLatentFormat):
    """Latents [B, 64, N] of the mini network."""

    scale_factor = 1.0188137142395404


AUTOENCODER = vae_network(
    MARK,
    hunyuan3d_vae_config,
    Hunyuan3dVae,
    ("float16", "bfloat16"),
    sizes={"full": Hunyuan3dVaeConfig(), "small": Hunyuan3dVaeConfig(width=64, num_layers=2, head_width=16)},
)
