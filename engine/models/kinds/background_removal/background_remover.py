"""BACKGROUND_REMOVAL: a network that finds the foreground of images."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional

from darkroom.engine.images.vision_pixels import vision_pixels
from darkroom.engine.models.network_value import NetworkAsModel

IMAGE_PX = 1024  # a side of the square that the network sees
UNCHANGED = ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))  # mean and deviation: its pixels are not normalised
WORKING_VALUES = 5  # a pixel and channel of the first stage, at the end of the decoder
VALUE_BYTES = 4


class BackgroundRemover(NetworkAsModel):
    """A network that removes backgrounds, with ComfyUI's members."""

    image_size = IMAGE_PX

    @torch.no_grad()
    def encode_image(self, image: torch.Tensor, on_image: Callable[[int], None] = lambda done: None) -> torch.Tensor:
        """Return the foreground of IMAGE [B, H, W, C] as a MASK [B, H, W] of 0..1, float32 on the CPU.

        Images are squeezed to a square, one after the other; `on_image` receives how many are done.
        """
        mask = torch.empty(image.shape[:3])
        with self.patcher.in_use(working_bytes=self._working_bytes()) as network:
            for index in range(len(image)):
                pixels = vision_pixels(image[index : index + 1], IMAGE_PX, *UNCHANGED, crop=False)
                logits = network(pixels.to(self.load_device, torch.float32))
                logits = functional.interpolate(logits, size=tuple(image.shape[1:3]), mode="bicubic")
                mask[index] = torch.sigmoid(logits)[0, 0].cpu()
                on_image(index + 1)
        return mask

    def _working_bytes(self) -> int:
        channels: int = self.model.config.swin.hidden_size
        return IMAGE_PX**2 * channels * WORKING_VALUES * VALUE_BYTES
