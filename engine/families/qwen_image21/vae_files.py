"""The autoencoder of Qwen-Image 2.1, of images with opacity: its files and its latents."""

from __future__ import annotations

from dataclasses import replace

import torch

from darkroom.engine.diffusion.latent_format import LatentFormat
from darkroom.engine.families.base import NotRecognised, Shapes
from darkroom.engine.families.vae_files import vae_network
from darkroom.engine.families.wan22.vae import MARK, OpacityVae, Wan22VaeConfig, wan22_vae_config

CHANNELS = 64
FULL = Wan22VaeConfig(
    base_channels=96, decoder_channels=144, latent_channels=CHANNELS, level_factors=(1, 2, 4, 8, 8),
    halves_time=(False, True, True, True), image_channels=4, patch=1, time_kernel=1,
)  # fmt: skip
SMALL = replace(FULL, base_channels=8, decoder_channels=16)


class OpacityLatentFormat(LatentFormat):
    """Latents [B, 64, h, w] of cells of 16 pixels, standardised by channel.

    Means and deviations are those of the published network. The table of colours is public knowledge of the community.
    """

    latent_channels = CHANNELS
    spacial_downscale_ratio = 16
    mean = (
        0.5126, 0.7721, -0.0631, 1.3506, -0.7855, -2.1025, -0.3458, 1.3722, 1.8873, -1.7177, -0.651, 0.2732, 0.7562,
        -0.6163, -1.0277, 3.8363, 2.021, 0.0472, 0.932, 2.0087, 2.4954, -0.1391, -1.4249, 1.8464, -0.5236, 1.2826,
        3.7046, -1.3035, 2.7286, -1.4518, -1.9036, -1.9955, -0.0342, -1.0265, -0.7636, 3.0555, 0.0746, -3.0751,
        -0.1076, 1.7376, -1.0914, -1.9435, -0.2784, -1.368, 0.4809, -0.4433, 0.3764, 0.5729, -2.0595, 1.096, -1.326,
        -2.0211, -5.0179, 0.5275, 4.0162, 1.8505, 0.3026, 1.9373, 1.4937, 0.2632, 0.5547, -1.7121, -0.1562, 0.0304,
    )  # fmt: skip
    deviation = (
        3.2001, 3.2936, 3.4321, 3.0091, 3.1061, 4.0379, 4.0705, 3.791, 3.0785, 3.65, 3.9308, 3.0904, 2.8778, 3.7675,
        3.732, 5.0756, 3.2864, 4.0397, 3.1317, 4.0443, 2.9249, 3.9454, 3.0988, 4.2489, 3.4896, 3.8513, 3.9323,
        3.4719, 3.7498, 4.283, 3.5694, 4.2467, 3.9037, 3.2947, 5.077, 3.5075, 3.27, 3.4767, 2.8063, 5.1125, 3.5327,
        4.7833, 3.1286, 4.1819, 3.8527, 3.8312, 3.5605, 4.3875, 3.9624, 4.0168, 3.5643, 4.055, 5.5614, 4.2963,
        4.408, 3.4959, 3.8747, 3.7608, 3.5735, 3.149, 3.7662, 3.6746, 3.4563, 3.8161,
    )  # fmt: skip
    latent_rgb_factors = (
        (-0.0158, -0.0115, -0.0174), (0.003, 0.012, 0.0027), (0.0637, 0.047, -0.0127), (0.036, 0.0661, -0.003),
        (0.0159, 0.0181, 0.0082), (0.0132, 0.0326, 0.0169), (0.0191, 0.0261, 0.0136), (-0.0146, -0.0276, -0.0361),
        (0.0187, -0.0024, -0.0072), (-0.1059, -0.009, 0.035), (-0.0195, -0.0226, -0.0138), (-0.0295, 0.0024, -0.0215),
        (0.0191, -0.0393, -0.0001), (-0.0144, -0.0166, -0.0272), (0.0389, 0.043, 0.0445), (-0.0153, -0.0336, 0.0031),
        (0.0339, 0.0122, 0.022), (-0.0136, -0.0078, -0.012), (-0.034, -0.0282, -0.0245), (-0.0133, -0.0176, -0.0133),
        (0.0109, -0.0087, 0.0096), (-0.001, 0.0044, 0.0016), (0.0301, 0.0053, 0.0361), (-0.0281, -0.0205, -0.0032),
        (-0.0725, 0.0002, 0.016), (-0.0036, 0.0158, 0.0807), (0.0087, 0.004, -0.0053), (-0.026, 0.0183, -0.0077),
        (-0.0039, -0.0035, -0.0107), (-0.0026, 0.0172, 0.0237), (0.0088, 0.0078, 0.0078), (-0.0087, -0.031, -0.0122),
        (-0.0027, 0.0018, 0.0094), (-0.0064, 0.0292, -0.0256), (0.0594, 0.1049, 0.118), (0.0103, -0.0103, -0.0026),
        (-0.0091, 0.0025, -0.0015), (0.0178, 0.0243, 0.0292), (-0.0063, -0.0012, 0.0202), (0.0452, 0.0246, 0.0143),
        (0.0149, 0.027, 0.0052), (0.1484, 0.0801, 0.0804), (-0.012, 0.004, 0.001), (0.0181, 0.0051, -0.0021),
        (0.0132, 0.005, 0.0019), (0.0291, 0.002, 0.0092), (0.0066, -0.041, -0.1314), (-0.1153, -0.0629, -0.0802),
        (0.0258, 0.0378, 0.0298), (0.0375, 0.1139, 0.0468), (-0.0142, -0.0126, -0.0276), (0.0339, 0.0153, 0.0138),
        (0.0346, 0.0211, 0.0267), (0.0369, -0.0431, -0.0993), (-0.0052, -0.0092, 0.0056), (-0.0279, 0.041, -0.0357),
        (0.0036, 0.0017, -0.0083), (-0.0441, -0.0367, -0.0454), (-0.0001, -0.0092, -0.0001),
        (-0.0222, -0.0183, -0.0051), (0.0039, 0.0053, -0.0184), (-0.0094, -0.0075, -0.0143),
        (-0.0066, -0.0088, -0.0063), (0.022, 0.0074, 0.01),
    )  # fmt: skip
    latent_rgb_factors_bias = (-0.1228, -0.1869, -0.3083)

    def process_in(self, latent: torch.Tensor) -> torch.Tensor:
        mean, deviation = self._moments(latent)
        return (latent - mean) / deviation

    def process_out(self, latent: torch.Tensor) -> torch.Tensor:
        mean, deviation = self._moments(latent)
        return latent * deviation + mean

    def _moments(self, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mean, deviation = (torch.tensor(item).view(1, -1, 1, 1).to(like) for item in (self.mean, self.deviation))
        return mean, deviation


def _configure(shapes: Shapes) -> Wan22VaeConfig:
    if "conv1.weight" not in shapes or "conv2.weight" not in shapes:
        raise NotRecognised("a VAE without encoder or decoder")
    channels, opacity = shapes["conv2.weight"][0], shapes["decoder.head.2.weight"][0]
    if (channels, opacity) != (CHANNELS, FULL.image_channels):
        raise NotRecognised(f"a VAE of {channels} latent channels and images of {opacity}, of another family")
    return replace(
        wan22_vae_config(shapes), level_factors=FULL.level_factors, halves_time=FULL.halves_time,
        image_channels=FULL.image_channels, patch=1, time_kernel=1,
    )  # fmt: skip


AUTOENCODER = vae_network(MARK, _configure, OpacityVae, ("bfloat16",), sizes={"full": FULL, "small": SMALL})
