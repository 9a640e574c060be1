"""TAESD (github.com/madebyollin/taesd): an autoencoder with a thousandth of a VAE's work.

Latents `[B, C, h, w]`, images `[B, 3, 8 h, 8 w]`. Module names are those that ComfyUI gives the two files' networks.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from darkroom.engine.layers.basic import Conv2d
from darkroom.engine.models.kinds.tiny_decoder import BLOCKS_PER_SIZE, NUM_DOUBLINGS, WIDTH, Block, TinyDecoder

Scale = Callable[[torch.Tensor], torch.Tensor]
WORKING_BYTES_PER_PIXEL = 4 * WIDTH  # and byte of the type: a few images of all channels


class TinyEncoder(nn.Sequential):
    """Images of 0..1 to scaled latents."""

    def __init__(self, latent_channels: int) -> None:
        layers: list[nn.Module] = [Conv2d(3, WIDTH, 3, padding=1), Block()]
        for _ in range(NUM_DOUBLINGS):
            layers.append(Conv2d(WIDTH, WIDTH, 3, padding=1, stride=2, bias=False))
            layers += [Block() for _ in range(BLOCKS_PER_SIZE)]
        layers.append(Conv2d(WIDTH, latent_channels, 3, padding=1))
        super().__init__(*layers)


class TinyAutoencoder(nn.Module):
    """Encoder and decoder in a VAE's place. `scaled` and `unscaled` convert latents as their format says."""

    downscale_ratio = 2**NUM_DOUBLINGS
    encode_bytes_per_pixel = WORKING_BYTES_PER_PIXEL
    decode_bytes_per_cell = WORKING_BYTES_PER_PIXEL * downscale_ratio**2

    def __init__(self, latent_channels: int, *, scaled: Scale, unscaled: Scale) -> None:
        super().__init__()
        self.latent_channels = latent_channels
        self.taesd_encoder, self.taesd_decoder = TinyEncoder(latent_channels), TinyDecoder(latent_channels)
        self._scaled, self._unscaled = scaled, unscaled

    def encode(self, images: torch.Tensor) -> torch.Tensor:
        """Return the unscaled latents of images of -1..1."""
        return self._unscaled(self.taesd_encoder(images * 0.5 + 0.5))

    def decode(self, latents: torch.Tensor) -> torch.Tensor:
        """Return images of about -1..1."""
        return self.taesd_decoder.decode(self._scaled(latents))
