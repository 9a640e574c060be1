"""The causal autoencoder of videos of 16 channels (`engine/families/wan/vae.py`): its files and latents.

Families of images and of videos share it; an image is a video of one frame.
"""

from __future__ import annotations

from darkroom.engine.diffusion.latent_format import StandardisedLatentFormat
from darkroom.engine.families.base import NotRecognised, Shapes
from darkroom.engine.families.vae_files import vae_network
from darkroom.engine.families.wan.vae import MARK, NESTED_MARK, WanVae, WanVaeConfig, wan_vae_config

LATENT_CHANNELS = 16


class WanLatentFormat(StandardisedLatentFormat):
    """Latents [B, 16, F, h, w], standardised by channel (Wan Team 2025, arXiv 2503.20314).

    Means and deviations are those of the published networks. The table of colours is public knowledge of the community.
    """

    latent_channels = LATENT_CHANNELS
    latent_dimensions = 3
    temporal_downscale_ratio = 4
    mean: tuple[float, ...] = (
        -0.7571, -0.7089, -0.9113, 0.1075, -0.1745, 0.9653, -0.1517, 1.5508, 0.4134, -0.0715, 0.5517, -0.3632,
        -0.1922, -0.9497, 0.2503, -0.2921,
    )  # fmt: skip
    deviation: tuple[float, ...] = (
        2.8184, 1.4541, 2.3275, 2.6558, 1.2196, 1.7708, 2.6052, 2.0743, 3.2687, 2.1526, 2.8652, 1.5579, 1.6382,
        1.1253, 2.8251, 1.9160,
    )  # fmt: skip
    latent_rgb_factors: tuple[tuple[float, float, float], ...] = (
        (-0.1299, -0.1692, 0.2932), (0.0671, 0.0406, 0.0442), (0.3568, 0.2548, 0.1747), (0.0372, 0.2344, 0.1420),
        (0.0313, 0.0189, -0.0328), (0.0296, -0.0956, -0.0665), (-0.3477, -0.4059, -0.2925), (0.0166, 0.1902, 0.1975),
        (-0.0412, 0.0267, -0.1364), (-0.1293, 0.0740, 0.1636), (0.0680, 0.3019, 0.1128), (0.0032, 0.0581, 0.0639),
        (-0.1251, 0.0927, 0.1699), (0.0060, -0.0633, 0.0005), (0.3477, 0.2275, 0.2950), (0.1984, 0.0913, 0.1861),
    )  # fmt: skip
    latent_rgb_factors_bias = (-0.1835, -0.0868, -0.3360)


def _configure(shapes: Shapes) -> WanVaeConfig:
    if "conv1.weight" not in shapes or "conv2.weight" not in shapes:
        raise NotRecognised("a VAE of videos without encoder or decoder")
    channels = shapes["conv2.weight"][0]
    if NESTED_MARK in shapes or channels != LATENT_CHANNELS:
        raise NotRecognised(f"a VAE of videos of {channels} latent channels, of another family")
    return wan_vae_config(shapes)


WAN_VAE = vae_network(
    MARK,
    _configure,
    WanVae,
    ("bfloat16", "float16"),
    sizes={"full": WanVaeConfig(), "small": WanVaeConfig(base_channels=16)},
)
