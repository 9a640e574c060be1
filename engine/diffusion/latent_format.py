"""The numbers of a latent: their scale, and a rough colour for previews."""

from __future__ import annotations

from collections.abc import Callable

import torch


class LatentFormat:
    """The scale of a VAE's latents at a network's input, by one factor; plain latents unless a subclass says otherwise.

    `latent_rgb_factors` [C, 3] turns a scaled latent cell into about the colour (-1..1) that the VAE would draw there.
    `latent_rgb_factors_reshape` gives the latent the channels of that table before.
    `num_rows` is the height [cells] of every latent of audio, whose width is its length.
    `spacial_downscale_ratio` are the pixels a side of one cell, as empty latents are resized to it.
    `temporal_downscale_ratio` are the frames of a video, or the samples of audio at 44.1 kHz, that one cell stands for.
    `blank` is an all-grey image, for inpainting networks that are given no image.
    `stream_channels` are those of each stream of nested latents, of which the first one is the VAE's; empty for plain
    latents. `latent_channels` is the largest of them. With `takes_streams` latents may be nested.
    `vae_channels` are those of the VAE's latents where the network takes several of their frames as one.
    """

    latent_channels = 4
    latent_dimensions = 2
    num_rows: int | None = None
    spacial_downscale_ratio = 8
    temporal_downscale_ratio = 1
    scale_factor = 1.0
    latent_rgb_factors: tuple[tuple[float, float, float], ...] | None = None
    latent_rgb_factors_bias: tuple[float, float, float] | None = None
    latent_rgb_factors_reshape: Callable[[torch.Tensor], torch.Tensor] | None = None
    taesd_decoder_name: str | None = None
    blank: tuple[float, ...] | None = None
    stream_channels: tuple[int, ...] = ()
    takes_streams = False
    vae_channels: int | None = None

    def process_in(self, latent: torch.Tensor) -> torch.Tensor:
        return latent * self.scale_factor

    def process_out(self, latent: torch.Tensor) -> torch.Tensor:
        return latent / self.scale_factor

    def fix_empty_latent(self, latent: torch.Tensor) -> torch.Tensor:
        """Return an empty latent with the streams that the format's latents have beside it: none."""
        return latent


class ShiftedLatentFormat(LatentFormat):
    """Latents that are moved by `shift_factor` before they are scaled."""

    shift_factor = 0.0

    def process_in(self, latent: torch.Tensor) -> torch.Tensor:
        return (latent - self.shift_factor) * self.scale_factor

    def process_out(self, latent: torch.Tensor) -> torch.Tensor:
        return latent / self.scale_factor + self.shift_factor


class StandardisedLatentFormat(LatentFormat):
    """Latents [B, C, ...] of which each channel is brought to a mean of 0 and a deviation of `scale_factor`."""

    mean: tuple[float, ...]
    deviation: tuple[float, ...]

    def process_in(self, latent: torch.Tensor) -> torch.Tensor:
        mean, deviation = self._moments(latent)
        return (latent - mean) * self.scale_factor / deviation

    def process_out(self, latent: torch.Tensor) -> torch.Tensor:
        mean, deviation = self._moments(latent)
        return latent * deviation / self.scale_factor + mean

    def _moments(self, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        shape = (1, self.latent_channels) + (1,) * (like.ndim - 2)
        mean, deviation = (torch.tensor(item).view(shape).to(like) for item in (self.mean, self.deviation))
        return mean, deviation


class PlaygroundLatentFormat(StandardisedLatentFormat):
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
