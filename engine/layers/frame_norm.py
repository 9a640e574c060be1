"""Group norm of each frame of a video by itself."""

from __future__ import annotations

import torch

from darkroom.engine.layers.basic import GroupNorm

NUM_GROUPS = 32


class FrameNorm(GroupNorm):
    """Group norm (Wu and He 2018, arXiv 1803.08494) of each frame of a video [B, C, F, h, w] by itself."""

    def __init__(self, channels: int, eps: float = 1e-5) -> None:
        super().__init__(NUM_GROUPS, channels, eps=eps)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        batch, channels, frames, height, width = input.shape
        normed = super().forward(input.transpose(1, 2).flatten(0, 1))
        return normed.view(batch, frames, channels, height, width).transpose(1, 2)
