"""The autoencoder of HunyuanImage 2.1's refiner: its files, and the numbers of its latents.

`B` batch, `C` channels, `f` latent frames, `h w` latent cells.
"""

from __future__ import annotations

import torch

from darkroom.engine.diffusion.latent_format import LatentFormat
from darkroom.engine.families.base import NotRecognised, Shapes
from darkroom.engine.families.hunyuan_video.image_refiner_vae import (
    HunyuanImageRefinerVae,
    HunyuanImageRefinerVaeConfig,
)
from darkroom.engine.families.vae_files import vae_network
from darkroom.engine.layers.vae_levels import vae_levels

MARK = "decoder.conv_in.conv.weight"
VAE_CHANNELS = 32
SCALE = 1.03682
PAIR = 2  # latent frames that are one of the network's


class RefinerLatentFormat(LatentFormat):
    """Latents [B, 32, f, h, w] of cells of 16 pixels, of which the network takes pairs of frames [B, 64, f', h, w].

    The first frame stands twice, so that the one of an image is a pair.
    """

    latent_channels = PAIR * VAE_CHANNELS
    vae_channels = VAE_CHANNELS
    latent_dimensions = 3
    scale_factor = SCALE

    def process_in(self, latent: torch.Tensor) -> torch.Tensor:
        """Return pairs of latent frames [B, 2 * C, (1 + f) / 2, h, w], scaled.

        Raises ValueError for a number of frames that makes no pairs.
        """
        frames = torch.cat([latent[:, :, :1], latent], dim=2)
        if frames.shape[2] % PAIR:
            raise ValueError(
                f"latent: its frames do not make pairs; got {latent.shape[2]} latent frames, expected one, or 3, 5, 7… "
                "of a video (1 + 8n frames)"
            )
        batch, channels, count, height, width = frames.shape
        pairs = frames.transpose(1, 2).reshape(batch, count // PAIR, PAIR * channels, height, width)
        return super().process_in(pairs.transpose(1, 2).contiguous())

    def process_out(self, latent: torch.Tensor) -> torch.Tensor:
        """Return the latent frames [B, C, f, h, w] of pairs, unscaled."""
        batch, channels, count, height, width = latent.shape
        frames = latent.transpose(1, 2).reshape(batch, PAIR * count, channels // PAIR, height, width)
        return super().process_out(frames.transpose(1, 2)[:, :, 1:])


def _configure(shapes: Shapes) -> HunyuanImageRefinerVaeConfig:
    channels = shapes[MARK][1]
    if channels != VAE_CHANNELS or "encoder.conv_in.conv.weight" not in shapes:
        raise NotRecognised(f"a VAE of videos of {channels} latent channels, of another family")
    levels = vae_levels(shapes, "conv.")
    return HunyuanImageRefinerVaeConfig(
        level_channels=levels.level_channels,
        latent_channels=channels,
        blocks_per_level=levels.blocks_per_level,
        image_channels=levels.image_channels,
    )


# HunyuanVideo 1.5 has the same.
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
