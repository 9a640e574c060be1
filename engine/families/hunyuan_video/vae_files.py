"""The autoencoder of HunyuanVideo: its files, and the numbers of its latents."""

from __future__ import annotations

from darkroom.engine.diffusion.latent_format import LatentFormat
from darkroom.engine.families.base import NotRecognised, Shapes
from darkroom.engine.families.hunyuan_video.vae import HunyuanVideoVae, HunyuanVideoVaeConfig
from darkroom.engine.families.vae_files import vae_network
from darkroom.engine.layers.vae_levels import vae_levels

MARK = "decoder.conv_in.conv.weight"
LATENT_CHANNELS = 16


class HunyuanVideoLatentFormat(LatentFormat):
    """Latents [B, 16, f, h, w]. The table of colours is public knowledge of the community."""

    latent_channels = LATENT_CHANNELS
    latent_dimensions = 3
    temporal_downscale_ratio = 4
    scale_factor = 0.476986
    latent_rgb_factors = (
        (-0.0395, -0.0331, 0.0445), (0.0696, 0.0795, 0.0518), (0.0135, -0.0945, -0.0282), (0.0108, -0.025, -0.0765),
        (-0.0209, 0.0032, 0.0224), (-0.0804, -0.0254, -0.0639), (-0.0991, 0.0271, -0.0669), (-0.0646, -0.0422, -0.04),
        (-0.0696, -0.0595, -0.0894), (-0.0799, -0.0208, -0.0375), (0.1166, 0.1627, 0.0962), (0.1165, 0.0432, 0.0407),
        (-0.2315, -0.192, -0.1355), (-0.027, 0.0401, -0.0821), (-0.0616, -0.0997, -0.0727),
        (0.0249, -0.0469, -0.1703),
    )  # fmt: skip
    latent_rgb_factors_bias = (0.0259, -0.0192, -0.0761)


def _configure(shapes: Shapes) -> HunyuanVideoVaeConfig:
    channels = shapes[MARK][1]
    if channels != LATENT_CHANNELS or "quant_conv.weight" not in shapes:
        raise NotRecognised(f"a VAE of videos of {channels} latent channels, of another family")
    levels = vae_levels(shapes, "conv.")
    return HunyuanVideoVaeConfig(
        level_channels=levels.level_channels,
        latent_channels=channels,
        blocks_per_level=levels.blocks_per_level,
        image_channels=levels.image_channels,
    )


AUTOENCODER = vae_network(
    MARK,
    _configure,
    HunyuanVideoVae,
    ("bfloat16", "float16"),
    sizes={
        "full": HunyuanVideoVaeConfig(level_channels=(128, 256, 512, 512)),
        "small": HunyuanVideoVaeConfig(level_channels=(32, 32, 32, 32), blocks_per_level=1),
    },
)
