"""An autoencoder that changes nothing, for networks that draw in pixels: latents are images of -1..1."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

NAME = "pixel_space"  # under which it is offered beside files of VAEs
CHANNELS = 3


@dataclass(frozen=True, slots=True)
class PixelSpaceConfig:
    """There is nothing to configure."""


class PixelSpace(nn.Module):
    """`encode` and `decode` return what they are given, [B, 3, H, W]. The only weight is a mark in files."""

    latent_channels = CHANNELS
    downscale_ratio = 1
    encode_bytes_per_pixel = 1
    decode_bytes_per_cell = 1

    def __init__(self, config: PixelSpaceConfig | None = None) -> None:
        super().__init__()
        self.config = config or PixelSpaceConfig()
        self.pixel_space_vae = nn.Parameter(torch.ones(()), requires_grad=False)

    def encode(self, images: torch.Tensor) -> torch.Tensor:
        return images

    def decode(self, latents: torch.Tensor) -> torch.Tensor:
        return latents
