"""Layers of Würstchen's networks, which Stable Cascade has (Pernias et al. 2023, arXiv 2306.00637).

`B` batch, `C` channels, `h w` latent cells, `T` tokens, `D` their width, `E` width of one embedded number. Module names
are those of the original checkpoints.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.layers.attention import optimized_attention
from darkroom.engine.layers.basic import Conv2d, Linear
from darkroom.engine.layers.unet_layers import Options

EPSILON = 1e-6
MAX_PERIOD = 10000
HEAD_CHANNELS = 64


def number_embedding(numbers: torch.Tensor, width: int) -> torch.Tensor:
    """Embed numbers of 0..1 as sinusoids of falling frequency, sines first: [B] -> [B, width]."""
    half = width // 2
    steps = torch.arange(half, device=numbers.device).float()
    frequencies = steps.mul(-math.log(MAX_PERIOD) / (half - 1)).exp()
    angles = (numbers * MAX_PERIOD)[:, None] * frequencies[None]
    return torch.cat([angles.sin(), angles.cos()], dim=1)


class PlainNorm(nn.Module):
    """Layer norm over the channels of [B, C, h, w], without weights."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        last = x.permute(0, 2, 3, 1)
        return functional.layer_norm(last, last.shape[-1:], eps=EPSILON).permute(0, 3, 1, 2)


class GlobalResponseNorm(nn.Module):
    """Competition between channels (Woo et al. 2023, arXiv 2301.00808), channels last: [B, h, w, C] -> the same."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.empty(1, 1, 1, width))
        self.beta = nn.Parameter(torch.empty(1, 1, 1, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        size: torch.Tensor = torch.linalg.vector_norm(x, dim=(1, 2), keepdim=True)
        relative = size / (size.mean(dim=-1, keepdim=True) + EPSILON)
        out: torch.Tensor = self.gamma.to(x) * (x * relative) + self.beta.to(x) + x
        return out


class CascadeResBlock(nn.Module):
    """A residual block: a convolution of each channel, then a mixture of the channels of each cell."""

    def __init__(self, channels: int, skip_channels: int = 0) -> None:
        super().__init__()
        self.depthwise = Conv2d(channels, channels, 3, padding=1, groups=channels)
        self.norm = PlainNorm()
        self.channelwise = nn.Sequential(
            Linear(channels + skip_channels, channels * 4),
            nn.GELU(),
            GlobalResponseNorm(channels * 4),
            nn.Identity(),  # a dropout in training; it keeps the last layer's name
            Linear(channels * 4, channels),
        )

    def forward(self, x: torch.Tensor, skip: torch.Tensor | None = None) -> torch.Tensor:
        """Return the result for `x` [B, C, h, w]; `skip` [B, skip_channels, h, w] goes into the mixture."""
        h = self.norm(self.depthwise(x))
        if skip is not None:
            h = torch.cat([h, skip], dim=1)
        out: torch.Tensor = x + self.channelwise(h.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return out


class CascadeAttention(nn.Module):
    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.to_q, self.to_k, self.to_v, self.out_proj = (Linear(channels, channels) for _ in range(4))

    def forward(self, tokens: torch.Tensor, source: torch.Tensor, options: Options) -> torch.Tensor:
        q, k, v = self.to_q(tokens), self.to_k(source), self.to_v(source)
        out: torch.Tensor = self.out_proj(optimized_attention(q, k, v, self.heads, transformer_options=options))
        return out


class CascadeAttnBlock(nn.Module):
    """Attention of the cells to each other and to the context."""

    def __init__(self, channels: int, context_dim: int) -> None:
        super().__init__()
        self.norm = PlainNorm()
        self.attention = nn.Module()
        self.attention.attn = CascadeAttention(channels, channels // HEAD_CHANNELS)
        self.kv_mapper = nn.Sequential(nn.SiLU(), Linear(context_dim, channels))

    def forward(self, x: torch.Tensor, context: torch.Tensor, options: Options) -> torch.Tensor:
        """Return the result for `x` [B, C, h, w] and `context` [B, T, D]."""
        tokens = self.norm(x).flatten(2).transpose(1, 2)  # [B, h*w, C]
        source = torch.cat([tokens, self.kv_mapper(context)], dim=1)
        attend: Any = self.attention.attn
        out: torch.Tensor = x + attend(tokens, source, options).transpose(1, 2).reshape(x.shape)
        return out


class CascadeTimestepBlock(nn.Module):
    """A scale and a shift of every channel, made of the embedded time and further numbers (`conditions`)."""

    def __init__(self, channels: int, embedding_width: int, conditions: tuple[str, ...]) -> None:
        super().__init__()
        self.mapper = Linear(embedding_width, channels * 2)
        self.mappers = tuple(f"mapper_{name}" for name in conditions)
        for name in self.mappers:
            self.add_module(name, Linear(embedding_width, channels * 2))

    def forward(self, x: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        """Return the result for `x` [B, C, h, w] and `numbers` [B, E * (1 + conditions)]."""
        first, *others = numbers.chunk(1 + len(self.mappers), dim=1)
        scale, shift = self.mapper(first)[:, :, None, None].chunk(2, dim=1)
        for name, number in zip(self.mappers, others, strict=True):
            more_scale, more_shift = self.get_submodule(name)(number)[:, :, None, None].chunk(2, dim=1)
            scale, shift = scale + more_scale, shift + more_shift
        out: torch.Tensor = x * (1 + scale) + shift
        return out
