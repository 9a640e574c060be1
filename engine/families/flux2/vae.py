"""The autoencoder of Flux.2 (Black Forest Labs 2025): that of latent diffusion with four neighbouring cells in one.

Images `[B, 3, H, W]` in -1..1, latents `[B, 4 C, H/16, W/16]`, normalised by stored means and variances of each
channel. Module names are those of the original checkpoints.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from darkroom.engine.layers.frozen_norm import FrozenBatchNorm
from darkroom.engine.layers.vae_kl import AutoencoderKl, VaeConfig

PACKED = 2  # cells a side that become one
NORM_EPS = 1e-4
NORM_MARK = "bn.running_mean"


def unpacked(latents: torch.Tensor) -> torch.Tensor:
    """Return latents [B, 4 C, h, w] with their cells beside each other [B, C, 2 h, 2 w]."""
    return functional.pixel_shuffle(latents, PACKED)


class Flux2Vae(AutoencoderKl):
    """An autoencoder of packed and normalised latents. `config` is of the latents before that."""

    def __init__(self, config: VaeConfig) -> None:
        super().__init__(config)
        self.latent_channels = config.latent_channels * PACKED**2
        self.downscale_ratio *= PACKED
        self.bn = FrozenBatchNorm(self.latent_channels, NORM_EPS, is_affine=False)

    def encode(self, images: torch.Tensor) -> torch.Tensor:
        """Return the mean of the posterior, packed and normalised."""
        packed: torch.Tensor = self.bn(functional.pixel_unshuffle(super().encode(images), PACKED))
        return packed

    def decode(self, latents: torch.Tensor) -> torch.Tensor:
        mean, variance = (item.to(latents).view(1, -1, 1, 1) for item in (self.bn.running_mean, self.bn.running_var))
        return super().decode(unpacked(latents * torch.sqrt(variance + NORM_EPS) + mean))
