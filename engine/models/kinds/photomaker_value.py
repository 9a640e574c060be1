"""PHOTOMAKER: an image encoder that puts a person into a prompt."""

from __future__ import annotations

from typing import Any

import torch

from darkroom.engine.images.vision_pixels import DEVIATION, MEAN, vision_pixels
from darkroom.engine.models.network_in_use import NetworkInUse
from darkroom.engine.models.network_value import NetworkValue
from darkroom.engine.models.weight_handle import WeightHandle

BYTES_PER_VALUE = 4  # it computes in float32


def _working_bytes(network: Any, shape: torch.Size) -> int:
    """Return the bytes of one layer's inner values for images [B, 3, H, W], the largest working memory."""
    config = network.config.vision
    num_bytes: int = config.num_tokens * config.inner_width * 2 * BYTES_PER_VALUE
    return num_bytes


class PhotoMakerEncoder(NetworkValue):
    """A person's image encoder over its weights."""

    def __init__(self, weights: WeightHandle) -> None:
        super().__init__(weights)
        self.model = NetworkInUse(self.patcher, _working_bytes)

    @torch.no_grad()
    def fuse(self, image: torch.Tensor, tokens: torch.Tensor, place: int) -> torch.Tensor:
        """Return a prompt's tokens [1, T, D] with the one at `place` fused with the first image of IMAGE, on the CPU.

        Raises ValueError for tokens of another width than the network's.
        """
        config = self.patcher.model.config
        if tokens.shape[-1] != config.token_width:
            width = config.token_width
            raise ValueError(
                f"clip: tokens of another width than PhotoMaker's; got {tokens.shape[-1]}, expected {width}"
            )
        pixels = vision_pixels(image.to(self.load_device), config.vision.image_px, MEAN, DEVIATION, crop=True).float()
        fused: torch.Tensor = self.model(pixels, tokens.to(self.load_device), place)
        return fused.to("cpu")
