"""The decoder of TripoSplat: its files, and its latents."""

from __future__ import annotations

from darkroom.engine.diffusion.latent_format import LatentFormat
from darkroom.engine.families.triposplat.transformer import LATENT_CHANNELS
from darkroom.engine.families.triposplat.vae import MARK, SplatVaeConfig, SplatVaeNetwork, splat_vae_config
from darkroom.engine.families.vae_files import vae_network

DECODER = vae_network(
    MARK,
    configure=splat_vae_config,
    build=SplatVaeNetwork,
    prefers=("float16", "bfloat16"),
    sizes={
        "full": SplatVaeConfig(),
        "small": SplatVaeConfig(hidden_size=64, intermediate_size=64, num_heads=2, num_octree_layers=1, num_layers=1),
    },
)


class TripoSplatLatentFormat(LatentFormat):
    """Latents [B, 8192, 16] with a camera [B, 1, 5], nested, not scaled."""

    latent_channels = LATENT_CHANNELS
    latent_dimensions = 1
    takes_streams = True
