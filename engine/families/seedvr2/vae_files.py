"""The autoencoder of SeedVR2: its file, and the numbers of its latents."""

from __future__ import annotations

from darkroom.engine.diffusion.latent_format import LatentFormat
from darkroom.engine.families.base import NotRecognised, Shapes
from darkroom.engine.families.seedvr2.vae import (
    LATENT_CHANNELS,
    MARK,
    SeedVr2Vae,
    SeedVr2VaeConfig,
    seedvr2_vae_config,
)
from darkroom.engine.families.vae_files import vae_network
from darkroom.engine.layers.frame_norm import NUM_GROUPS

NUM_LEVELS = 4  # of which the latents are 8 times smaller than images, and 4 times shorter


class SeedVr2LatentFormat(LatentFormat):
    """Latents of videos [B, 16, f, h, w], which the VAE scales."""

    latent_channels = LATENT_CHANNELS
    latent_dimensions = 3


def _configure(shapes: Shapes) -> SeedVr2VaeConfig:
    config = seedvr2_vae_config(shapes)
    if config.latent_channels != LATENT_CHANNELS:
        raise NotRecognised(f"a VAE of videos of {config.latent_channels} latent channels, of another family")
    if len(config.level_channels) != NUM_LEVELS or any(channels % NUM_GROUPS for channels in config.level_channels):
        raise NotRecognised(
            f"a VAE like SeedVR2's of levels of {list(config.level_channels)} channels, expected {NUM_LEVELS} of "
            f"multiples of {NUM_GROUPS}"
        )
    return config


AUTOENCODER = vae_network(
    MARK,
    _configure,
    SeedVr2Vae,
    ("float16", "bfloat16"),
    sizes={
        "full": SeedVr2VaeConfig(),
        "small": SeedVr2VaeConfig(level_channels=(32, 32, 64, 64)),
    },
)
