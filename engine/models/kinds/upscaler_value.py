"""UPSCALE_MODEL: a network that enlarges images, with the members that custom nodes use."""

from __future__ import annotations

import torch

from darkroom.engine.models.network_value import NetworkAsModel


class UpscaleModel(NetworkAsModel):
    """A network that enlarges images (`engine/models/kinds/upscaler.py`)."""

    @property
    def scale(self) -> int:
        scale: int = self.model.scale
        return scale

    @property
    def out_channels(self) -> int:
        channels: int = self.model.out_channels
        return channels

    @property
    def output_channels(self) -> int:
        """`out_channels` by the name of the spandrel library."""
        return self.out_channels

    @property
    def device(self) -> torch.device:
        return self.patcher.load_device

    def to(self, *args: object, **kwargs: object) -> UpscaleModel:
        """Return the model unchanged: the engine decides its device and type, but custom nodes call this."""
        return self

    eval = cpu = cuda = half = float = bfloat16 = to

    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        """Enlarge [B, C, H, W] of 0..1, clamped to 0..1. Raises ValueError when the network requires other channels."""
        with self.patcher.in_use() as network:
            wanted = network.config.in_channels if hasattr(network, "config") else image.shape[1]
            if image.shape[1] != wanted:
                raise ValueError(f"the upscaling network takes {wanted} channels, the image has {image.shape[1]}")
            enlarged: torch.Tensor = network(image.to(self.device)).clamp_(0, 1)
        return enlarged
