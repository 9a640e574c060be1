"""The autoencoder of Mochi: its files, and the numbers of its latents."""

from __future__ import annotations

from darkroom.engine.diffusion.latent_format import StandardisedLatentFormat
from darkroom.engine.families.base import NotRecognised, Shapes
from darkroom.engine.families.mochi.vae import MARK, MochiVae, MochiVaeConfig, mochi_vae_config
from darkroom.engine.families.vae_files import vae_network

LATENT_CHANNELS = 12


class MochiLatentFormat(StandardisedLatentFormat):
    """Latents [B, 12, f, h, w], standardised by channel, as Genmo published. The colours are the community's."""

    latent_channels = LATENT_CHANNELS
    latent_dimensions = 3
    temporal_downscale_ratio = 6
    mean = (
        -0.06730895953510081, -0.038011381506090416, -0.07477820912866141, -0.05565264470995561,
        0.012767231469026969, -0.04703542746246419, 0.043896967884726704, -0.09346305707025976,
        -0.09918314763016893, -0.008729793427399178, -0.011931556316503654, -0.0321993391887285,
    )  # fmt: skip
    deviation = (
        0.9263795028493863, 0.9248894543193766, 0.9393059390890617, 0.959253732819592, 0.8244560132752793,
        0.917259975397747, 0.9294154431013696, 1.3720942357788521, 0.881393668867029, 0.9168315692124348,
        0.9185249279345552, 0.9274757570805041,
    )  # fmt: skip
    latent_rgb_factors = (
        (-0.0069, -0.0045, 0.0018), (0.0154, -0.0692, -0.0274), (0.0333, 0.0019, 0.0206), (-0.1390, 0.0628, 0.1678),
        (-0.0725, 0.0134, -0.1898), (0.0074, -0.0270, -0.0209), (-0.0176, -0.0277, -0.0221), (0.5294, 0.5204, 0.3852),
        (-0.0326, -0.0446, -0.0143), (-0.0659, 0.0153, -0.0153), (0.0185, -0.0217, 0.0014), (-0.0396, -0.0495, -0.0281),
    )  # fmt: skip
    latent_rgb_factors_bias = (-0.0940, -0.1418, -0.1453)


def _configure(shapes: Shapes) -> MochiVaeConfig:
    channels = shapes[MARK][1]
    if channels != LATENT_CHANNELS:
        raise NotRecognised(f"a VAE of videos of {channels} latent channels, of another family")
    return mochi_vae_config(shapes)


AUTOENCODER = vae_network(
    MARK,
    _configure,
    MochiVae,
    ("float16",),
    sizes={
        "full": MochiVaeConfig(),
        "small": MochiVaeConfig(
            encoder_channels=(32, 64, 32, 64), decoder_channels=(32, 64, 32, 64), num_blocks=(3, 1, 1, 1, 1)
        ),
    },
)
