"""The autoencoder of HunyuanImage 2.1: its files, and the numbers of its latents."""

from __future__ import annotations

from darkroom.engine.diffusion.latent_format import LatentFormat
from darkroom.engine.families.base import NotRecognised, Shapes
from darkroom.engine.families.hunyuan_video.image_vae import HunyuanImageVae, HunyuanImageVaeConfig
from darkroom.engine.families.vae_files import vae_network
from darkroom.engine.layers.vae_levels import vae_levels

MARK = "decoder.conv_in.weight"
LATENT_CHANNELS = 64


class HunyuanImageLatentFormat(LatentFormat):
    """Latents [B, 64, h, w] of cells of 32 pixels. The table of colours is public knowledge of the community."""

    latent_channels = LATENT_CHANNELS
    spacial_downscale_ratio = 32
    scale_factor = 0.75289
    latent_rgb_factors = (
        (-0.0154, -0.0397, -0.0521), (0.0005, 0.0093, 0.0006), (-0.0805, -0.0773, -0.0586),
        (-0.0494, -0.0487, -0.0498), (-0.0212, -0.0076, -0.0261), (-0.0179, -0.0417, -0.0505),
        (0.0158, 0.031, 0.0239), (0.0409, 0.0516, 0.0201), (0.035, 0.0553, 0.0036), (-0.0447, -0.0327, -0.0479),
        (-0.0038, -0.0221, -0.0365), (-0.0423, -0.0718, -0.0654), (0.0039, 0.0368, 0.0104), (0.0655, 0.0217, 0.0122),
        (0.049, 0.1638, 0.2053), (0.0932, 0.0829, 0.065), (-0.0186, -0.0209, -0.0135), (-0.008, -0.0076, -0.0148),
        (-0.0284, -0.0201, 0.0011), (-0.0642, -0.0294, -0.0777), (-0.0035, 0.0076, -0.014), (0.0519, 0.0731, 0.0887),
        (-0.0102, 0.0095, 0.0704), (0.0068, 0.0218, -0.0023), (-0.0726, -0.0486, -0.0519), (0.026, 0.0295, 0.0263),
        (0.025, 0.0333, 0.0341), (0.0168, -0.012, -0.0174), (0.0226, 0.1037, 0.0114), (0.2577, 0.1906, 0.1604),
        (-0.0646, -0.0137, -0.0018), (-0.0112, 0.0309, 0.0358), (-0.0347, 0.0146, -0.0481), (0.0234, 0.0179, 0.0201),
        (0.0157, 0.0313, 0.0225), (0.0423, 0.0675, 0.0524), (-0.0031, 0.0027, -0.0255), (0.0447, 0.0555, 0.033),
        (-0.0152, 0.0103, 0.0299), (-0.0755, -0.0489, -0.0635), (0.0853, 0.0788, 0.1017), (-0.0272, -0.0294, -0.0471),
        (0.044, 0.04, -0.0137), (0.0335, 0.0317, -0.0036), (-0.0344, -0.0621, -0.0984), (-0.0127, -0.063, -0.062),
        (-0.0648, 0.036, 0.0924), (-0.0781, -0.0801, -0.0409), (0.0363, 0.0613, 0.0499), (0.0238, 0.0034, 0.0041),
        (-0.0135, 0.0258, 0.031), (0.0614, 0.1086, 0.0589), (0.0428, 0.035, 0.0205), (0.0153, 0.0173, -0.0018),
        (-0.0288, -0.0455, -0.0091), (0.0344, 0.0109, -0.0157), (-0.0205, -0.0247, -0.0187), (0.0487, 0.0126, 0.0064),
        (-0.022, -0.0013, 0.0074), (-0.0203, -0.0094, -0.0048), (-0.0719, 0.0429, -0.0442), (0.1042, 0.0497, 0.0356),
        (-0.0659, -0.0578, -0.028), (-0.006, -0.0322, -0.0234),
    )  # fmt: skip
    latent_rgb_factors_bias = (0.0007, -0.0256, -0.0206)


def _configure(shapes: Shapes) -> HunyuanImageVaeConfig:
    channels = shapes[MARK][1]
    if channels != LATENT_CHANNELS or len(shapes[MARK]) != 4 or "encoder.conv_in.weight" not in shapes:
        raise NotRecognised(f"a VAE of {channels} latent channels of another family")
    levels = vae_levels(shapes)
    return HunyuanImageVaeConfig(
        level_channels=levels.level_channels,
        latent_channels=channels,
        blocks_per_level=levels.blocks_per_level,
        image_channels=levels.image_channels,
    )


AUTOENCODER = vae_network(
    MARK,
    _configure,
    HunyuanImageVae,
    ("float16", "bfloat16"),
    sizes={
        "full": HunyuanImageVaeConfig(level_channels=(128, 256, 512, 512, 1024, 1024)),
        "small": HunyuanImageVaeConfig(level_channels=(32, 32, 32, 64, 128, 128), blocks_per_level=1),
    },
)
