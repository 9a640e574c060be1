"""What the numbers of a latent mean: their scale, and a rough colour for previews."""

from __future__ import annotations

import torch


class Sd15LatentFormat:
    """Latents of SD1.5's VAE are multiplied by 0.18215 for unit variance (Rombach et al. 2022, arXiv 2112.10752).

    `latent_rgb_factors` [4, 3] turns a scaled latent cell into about the colour (-1..1) that the VAE would draw there;
    the table is public knowledge of the community (fitted by least squares).
    """

    latent_channels = 4
    latent_dimensions = 2
    scale_factor = 0.18215
    latent_rgb_factors = (
        (0.3512, 0.2297, 0.3227),
        (0.3250, 0.4974, 0.2350),
        (-0.2829, 0.1762, 0.2721),
        (-0.2120, -0.2616, -0.7177),
    )
    latent_rgb_factors_bias = None
    taesd_decoder_name = "taesd_decoder"

    def process_in(self, latent: torch.Tensor) -> torch.Tensor:
        return latent * self.scale_factor

    def process_out(self, latent: torch.Tensor) -> torch.Tensor:
        return latent / self.scale_factor
