"""Memory of the layers of a video network for the frames before those that pass through it."""

from __future__ import annotations

import torch
from torch import nn


class FrameMemory:
    """The last frames of what each layer has seen of a video, while it passes through a network in pieces.

    `is_whole`: the video passes in one piece, such as an image, so that nothing is remembered.
    """

    def __init__(self, *, is_whole: bool = False) -> None:
        self._is_whole = is_whole
        self._frames: dict[nn.Module, torch.Tensor] = {}

    def of(self, layer: nn.Module) -> torch.Tensor | None:
        """Return the frames [B, C, f, h, w] that a layer remembers, None before the first piece."""
        return self._frames.get(layer)

    def keep(self, layer: nn.Module, frames: torch.Tensor) -> None:
        """Remember frames in place of earlier ones; copied, so that the rest of the piece can be freed."""
        if not self._is_whole:
            self.hold(layer, frames.clone())

    def hold(self, layer: nn.Module, frames: torch.Tensor) -> None:
        """Remember a tensor that is nobody else's in place of earlier ones."""
        self._frames[layer] = frames

    def forget(self) -> None:
        """Free what is remembered, behind the end of a video."""
        self._frames.clear()

    def move(self, device: torch.device) -> None:
        """Move what is remembered to a device."""
        self._frames = {layer: frames.to(device) for layer, frames in self._frames.items()}
