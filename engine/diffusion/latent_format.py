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


class PlaygroundLatentFormat(Sd15LatentFormat):
    """Latents of Playground v2.5 (Li et al. 2024, arXiv 2402.17245): standardised by channel, at half deviation."""

    scale_factor = 0.5
    mean = (-1.6574, 1.886, -1.383, 2.5155)
    deviation = (8.4927, 5.9022, 6.5498, 5.2299)
    latent_rgb_factors = (
        (0.3920, 0.4054, 0.4549),
        (-0.2634, -0.0196, 0.0653),
        (0.0568, 0.1687, -0.0755),
        (-0.3112, -0.2359, -0.2076),
    )
    taesd_decoder_name = "taesdxl_decoder"

    def process_in(self, latent: torch.Tensor) -> torch.Tensor:
        mean, deviation = self._moments(latent)
        return (latent - mean) * self.scale_factor / deviation

    def process_out(self, latent: torch.Tensor) -> torch.Tensor:
        mean, deviation = self._moments(latent)
        return latent * deviation / self.scale_factor + mean

    def _moments(self, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mean, deviation = (torch.tensor(item).view(1, 4, 1, 1).to(like) for item in (self.mean, self.deviation))
        return mean, deviation
