"""The autoencoder of CogVideoX: its file, and the numbers of its latents."""

from __future__ import annotations

from darkroom.engine.diffusion.latent_format import LatentFormat
from darkroom.engine.families.base import NotRecognised, Shapes
from darkroom.engine.families.cogvideox.vae import (
    MARK,
    NUM_GROUPS,
    CogVideoXVae,
    CogVideoXVaeConfig,
    cogvideox_vae_config,
)
from darkroom.engine.families.vae_files import vae_network

LATENT_CHANNELS = 16
NUM_LEVELS = 4  # of which the latents are 8 times smaller than images, and 4 times shorter
MOST_CHANNELS, MOST_BLOCKS = 2048, 16  # of a level: networks are built before their tensors are looked for


class CogVideoXLatentFormat(LatentFormat):
    """Latents [B, 16, f, h, w] of the networks of 48 heads and more: 5B, 1.5, Fun and VOID."""

    latent_channels = LATENT_CHANNELS
    latent_dimensions = 3
    temporal_downscale_ratio = 4
    scale_factor = 0.7


class FirstCogVideoXLatentFormat(CogVideoXLatentFormat):
    """Latents of the networks of fewer heads: 2B."""

    scale_factor = 1.15258426


def _configure(shapes: Shapes) -> CogVideoXVaeConfig:
    config = cogvideox_vae_config(shapes)
    if config.latent_channels != LATENT_CHANNELS:
        raise NotRecognised(f"a VAE of videos of {config.latent_channels} latent channels, of another family")
    is_built = all(0 < channels <= MOST_CHANNELS and channels % NUM_GROUPS == 0 for channels in config.level_channels)
    if len(config.level_channels) != NUM_LEVELS or not is_built or not 0 < config.blocks_per_level <= MOST_BLOCKS:
        raise NotRecognised(
            f"a VAE like CogVideoX's of levels of {list(config.level_channels)} channels and {config.blocks_per_level} "
            f"blocks, expected {NUM_LEVELS} of multiples of {NUM_GROUPS} up to {MOST_CHANNELS} channels, and up to "
            f"{MOST_BLOCKS} blocks"
        )
    return config


AUTOENCODER = vae_network(
    MARK,
    _configure,
    CogVideoXVae,
    ("bfloat16", "float16"),
    sizes={
        "full": CogVideoXVaeConfig(),
        "small": CogVideoXVaeConfig(level_channels=(32, 32, 64, 64), blocks_per_level=1),
    },
)
