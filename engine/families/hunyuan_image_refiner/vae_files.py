"""The autoencoder of HunyuanImage 2.1's refiner: its files, and the numbers of its latents."""

from __future__ import annotations

from darkroom.engine.diffusion.latent_format import LatentFormat
from darkroom.engine.families.base import NotRecognised, Shapes
from darkroom.engine.families.hunyuan_video.image_refiner_vae import (
    HunyuanImageRefinerVae,
    HunyuanImageRefinerVaeConfig,
)
from darkroom.engine.families.vae_files import vae_network
from darkroom.engine.layers.vae_levels import vae_levels

MARK = "decoder.conv_in.conv.weight"
FRAME_CHANNELS = 32


class RefinerLatentFormat(LatentFormat):
    """Latents [B, 64, f, h, w] of cells of 16 pixels."""

    latent_channels = 2 * FRAME_CHANNELS
    latent_dimensions = 3
    spatial_ratio = 16
    scale_factor = 1.03682


def _configure(shapes: Shapes) -> HunyuanImageRefinerVaeConfig:
    channels = shapes[MARK][1]
    if channels != FRAME_CHANNELS or "encoder.conv_in.conv.weight" not in shapes:
        raise NotRecognised(f"a VAE of videos of {channels} latent channels, of another family")
    levels = vae_levels(shapes, "conv.")
    return HunyuanImageRefinerVaeConfig(
        level_channels=levels.level_channels,
        frame_channels=channels,
        blocks_per_level=levels.blocks_per_level,
        image_channels=levels.image_channels,
    )


AUTOENCODER = vae_network(
    MARK,
    _configure,
    HunyuanImageRefinerVae,
    ("float16", "bfloat16"),
    sizes={
        "full": HunyuanImageRefinerVaeConfig(level_channels=(128, 256, 512, 1024, 1024)),
        "small": HunyuanImageRefinerVaeConfig(level_channels=(16, 16, 32, 64, 64), blocks_per_level=1),
    },
)
