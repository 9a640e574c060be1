"""The projection of a latent to features of an image's patches, and the gates by which patches take them in.

`B` batch, `C` channels of the latent, `h w` its cells, `T` patches, `R C` their rows and columns, `D` hidden size.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.families.pid.config import PACKED_SIDE, PiDConfig
from darkroom.engine.layers.basic import Conv2d, GroupNorm, Linear
from darkroom.engine.layers.patches import image_channels_first
from darkroom.engine.layers.shapes import Shape

PaddingMode = Literal["zeros", "replicate"]
GROUPS = 4  # of channels that a norm of the projection takes together
WITHOUT_LATENT = (
    "conditioning: PiD decodes a latent; got conditioning without one, expected that of PiDConditioning (the negative "
    "one, too, unless cfg is 1)"
)


class NoiseGate(nn.Module):
    """A gate that closes with the noise of the latent: the more noise, the less of its features is taken in."""

    def __init__(self, config: PiDConfig) -> None:
        super().__init__()
        self.content_proj = Linear(2 * config.hidden_size, 1 if config.gates_tokens else config.hidden_size)
        self.log_alpha = nn.Parameter(torch.empty(()))

    def forward(self, tokens: torch.Tensor, features: torch.Tensor, sigma: torch.Tensor) -> torch.Tensor:
        """Return tokens [B, T, D] with features [B, T, D] of a latent with noise of level `sigma` [B], float32."""
        content = self.content_proj(torch.cat([tokens, features], dim=-1))
        closing = self.log_alpha.float().exp() * sigma.view(-1, 1, 1)
        return tokens + (torch.sigmoid(content - closing) * features).to(tokens.dtype)


class ResidualBlock(nn.Module):
    def __init__(self, channels: int, padding_mode: PaddingMode) -> None:
        super().__init__()
        self.block = nn.Sequential(
            GroupNorm(GROUPS, channels), nn.SiLU(), _convolution(channels, channels, padding_mode),
            GroupNorm(GROUPS, channels), nn.SiLU(), _convolution(channels, channels, padding_mode),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = x + self.block(x)
        return out


class LatentProjection(nn.Module):
    """`forward(latent [B, C, h, w], rows, columns)` -> features [B, T, D] of patches, by feature.

    The last one is for the blocks of pixels where the network conditions them.
    """

    def __init__(self, config: PiDConfig) -> None:
        super().__init__()
        self.config = config
        size = config.latent_size
        mode: PaddingMode = "replicate" if config.is_later else "zeros"
        self.latent_proj = nn.Sequential(
            _convolution(config.projected_channels, size, mode), nn.SiLU(), _convolution(size, size, mode),
            *(ResidualBlock(size, mode) for _ in range(config.num_latent_blocks)),
        )  # fmt: skip
        self.output_heads = nn.ModuleList(Linear(size, config.hidden_size) for _ in range(config.num_features))
        if config.is_later:
            self.pit_head = Linear(size, config.hidden_size)
        self.gate_modules = nn.ModuleList(NoiseGate(config) for _ in range(config.num_features))

    def forward(self, latent: torch.Tensor, rows: int, columns: int) -> tuple[torch.Tensor, ...]:
        if self.config.splits_cells:
            latent = split_cells(latent)
        if latent.shape[-2:] != (rows, columns):
            latent = functional.interpolate(latent, size=(rows, columns), mode="nearest")
        projected = self.latent_proj(latent).flatten(2).transpose(1, 2)  # [B, T, size]
        heads = [*self.output_heads, *([self.pit_head] if self.config.is_later else ())]
        return tuple(head(projected) for head in heads)


def split_cells(latent: torch.Tensor) -> torch.Tensor:
    """Return a latent [B, 4 * C, h, w] as cells of their own [B, C, 2 * h, 2 * w]."""
    height, width = (PACKED_SIDE * side for side in latent.shape[-2:])
    return image_channels_first(latent.flatten(2).transpose(1, 2).contiguous(), height, width, PACKED_SIDE)


def check_latent(shape: Shape, config: PiDConfig) -> None:
    """Raise ValueError for a latent of this shape that the network was not trained for."""
    if len(shape) != 4 or shape[1] != config.latent_channels:
        raise ValueError(
            f"positive: its latent (PiDConditioning) is of another model than those that this file decodes; got shape "
            f"{list(shape)}, expected {config.latent_channels} channels (Flux.1, SD 3, Qwen-Image: 16, Flux.2: 128, "
            "SDXL: 4)"
        )


def _convolution(in_channels: int, out_channels: int, padding_mode: PaddingMode) -> Conv2d:
    return Conv2d(in_channels, out_channels, 3, padding=1, padding_mode=padding_mode)
