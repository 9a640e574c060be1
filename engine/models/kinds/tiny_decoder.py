"""TAESD's decoder (github.com/madebyollin/taesd): scaled latents to images with a thousandth of a VAE's work.

Latents `[B, C, h, w]`, images `[B, 3, 8 h, 8 w]`. Module names are those of its files: numbers in one sequence.
"""

from __future__ import annotations

import torch
from torch import nn

from darkroom.engine.layers.basic import Conv2d

WIDTH = 64
NUM_DOUBLINGS = 3
BLOCKS_PER_SIZE = 3
MOST = 3.0  # beyond which latents are squeezed


class Squeeze(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x / MOST) * MOST


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        first, second, third = (Conv2d(WIDTH, WIDTH, 3, padding=1) for _ in range(3))
        self.conv = nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), third)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.conv(x)
        return torch.relu(out + x)


class TinyDecoder(nn.Sequential):
    def __init__(self, latent_channels: int) -> None:
        layers: list[nn.Module] = [Squeeze(), Conv2d(latent_channels, WIDTH, 3, padding=1), nn.ReLU()]
        for _ in range(NUM_DOUBLINGS):
            layers += [Block() for _ in range(BLOCKS_PER_SIZE)]
            layers += [nn.Upsample(scale_factor=2), Conv2d(WIDTH, WIDTH, 3, padding=1, bias=False)]
        layers += [Block(), Conv2d(WIDTH, 3, 3, padding=1)]
        super().__init__(*layers)
        self.latent_channels = latent_channels

    @torch.no_grad()
    def decode(self, latents: torch.Tensor) -> torch.Tensor:
        """Return images [B, 3, 8 h, 8 w] of about -1..1."""
        images: torch.Tensor = self(latents)
        return images * 2.0 - 1.0
