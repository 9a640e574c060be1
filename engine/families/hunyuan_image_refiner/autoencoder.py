"""The autoencoder of HunyuanImage 2.1's refiner: its files, and the numbers of its latents."""

from __future__ import annotations

from engine.architectures.paired_frames_autoencoder import PairedFramesAutoencoder, PairedFramesVaeConfig
from engine.architectures.vae_levels import vae_levels
from engine.diffusion.latent_format import LatentFormat
from engine.families.base import NotRecognised, Shapes
from engine.families.parts.vae_network import vae_network

MARK = "decoder.conv_in.conv.weight"
FRAME_CHANNELS = 32
FULL = PairedFramesVaeConfig(level_channels=(128, 256, 512, 1024, 1024))
SMALL = PairedFramesVaeConfig(level_channels=(16, 16, 32, 64, 64), blocks_per_level=1)  # for tests


class RefinerLatentFormat(LatentFormat):
    """Latents [B, 64, f, h, w] of cells of 16 pixels."""

    latent_channels = 2 * FRAME_CHANNELS
    latent_dimensions = 3
    spatial_ratio = 16
    scale_factor = 1.03682


def _configure(shapes: Shapes) -> PairedFramesVaeConfig:
    channels = shapes[MARK][1]
    if channels != FRAME_CHANNELS or "encoder.conv_in.conv.weight" not in shapes:
        raise NotRecognised(f"a VAE of videos of {channels} latent channels, of another family")
    levels = vae_levels(shapes, "conv.")
    return PairedFramesVaeConfig(
        level_channels=levels.level_channels,
        frame_channels=channels,
        blocks_per_level=levels.blocks_per_level,
        picture_channels=levels.picture_channels,
    )


AUTOENCODER = vae_network(MARK, _configure, PairedFramesAutoencoder, ("float16", "bfloat16"))
