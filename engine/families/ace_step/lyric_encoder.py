"""The encoder of lyrics of ACE-Step (Gong et al. 2025, arXiv 2506.00045), of any width and depth.

Attention with relative places (Dai et al. 2019, arXiv 1901.02860) as in a Conformer without convolutions. `B` batch,
`T` tokens, `D` width, `H` heads, `W` width of a head. Module names are those of the original checkpoints.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.layers.basic import Linear
from darkroom.engine.layers.shapes import Shapes, count_children

LONGEST_WAVE = 10000.0


@dataclass(frozen=True, slots=True)
class LyricEncoderConfig:
    """Configuration of the encoder."""

    width: int = 1024
    num_blocks: int = 6
    heads: int = 16
    inner_width: int = 4096


def lyric_encoder_config(shapes: Shapes, prefix: str) -> LyricEncoderConfig:
    """Return the configuration of the encoder with these tensors behind a prefix. Raises LookupError."""
    first = f"{prefix}encoders.0."
    return LyricEncoderConfig(
        width=shapes[f"{prefix}after_norm.weight"][0],
        num_blocks=count_children(shapes, f"{prefix}encoders"),
        heads=shapes[f"{first}self_attn.pos_bias_u"][0],
        inner_width=shapes[f"{first}feed_forward.w_1.weight"][0],
    )


def distance_waves(num_tokens: int, width: int, device: torch.device) -> torch.Tensor:
    """Return sines and cosines [1, 2 T - 1, D] of the distances from T - 1 down to 1 - T, float32."""
    distances = torch.arange(num_tokens - 1, -num_tokens, -1, dtype=torch.float32, device=device)[:, None]
    steps = torch.arange(0, width, 2, dtype=torch.float32, device=device)
    angles = distances * torch.exp(steps * -(math.log(LONGEST_WAVE) / width))
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)[None]


class RelativeAttention(nn.Module):
    """Self-attention whose scores depend on how far two tokens are from each other."""

    def __init__(self, config: LyricEncoderConfig) -> None:
        super().__init__()
        width, self.heads = config.width, config.heads
        self.linear_q, self.linear_k, self.linear_v, self.linear_out = (Linear(width, width) for _ in range(4))
        self.linear_pos = Linear(width, width, bias=False)
        self.pos_bias_u, self.pos_bias_v = (nn.Parameter(torch.empty(self.heads, width // self.heads)) for _ in "uv")

    def forward(self, x: torch.Tensor, waves: torch.Tensor) -> torch.Tensor:
        q, k, v, places = (
            layer(item).view(item.shape[0], item.shape[1], self.heads, -1).transpose(1, 2)
            for layer, item in (
                (self.linear_q, x), (self.linear_k, x), (self.linear_v, x), (self.linear_pos, waves),
            )
        )  # fmt: skip
        by_content = (q + self.pos_bias_u[:, None].to(q.dtype)) @ k.transpose(-2, -1)
        by_place = _shifted((q + self.pos_bias_v[:, None].to(q.dtype)) @ places.transpose(-2, -1))
        scores = (by_content + by_place) / math.sqrt(q.shape[-1])
        out: torch.Tensor = self.linear_out((scores.softmax(dim=-1) @ v).transpose(1, 2).flatten(2))
        return out


def _shifted(scores: torch.Tensor) -> torch.Tensor:
    """Return scores [B, H, T, T] by token from those by distance [B, H, T, 2 T - 1]."""
    num_tokens, num_distances = scores.shape[-2:]
    padded = functional.pad(scores, (1, 0)).view(*scores.shape[:2], num_distances + 1, num_tokens)
    return padded[:, :, 1:].reshape(scores.shape)[..., :num_tokens]


class LyricFeedForward(nn.Module):
    def __init__(self, config: LyricEncoderConfig) -> None:
        super().__init__()
        self.w_1, self.w_2 = Linear(config.width, config.inner_width), Linear(config.inner_width, config.width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.w_2(functional.silu(self.w_1(x)))
        return out


class LyricBlock(nn.Module):
    def __init__(self, config: LyricEncoderConfig) -> None:
        super().__init__()
        self.self_attn, self.feed_forward = RelativeAttention(config), LyricFeedForward(config)
        self.norm_ff, self.norm_mha = nn.LayerNorm(config.width), nn.LayerNorm(config.width)

    def forward(self, x: torch.Tensor, waves: torch.Tensor) -> torch.Tensor:
        x = x + self.self_attn(self.norm_mha(x), waves)
        out: torch.Tensor = x + self.feed_forward(self.norm_ff(x))
        return out


class LyricEmbedder(nn.Module):
    def __init__(self, config: LyricEncoderConfig) -> None:
        super().__init__()
        self.out = nn.Sequential(Linear(config.width, config.width), nn.LayerNorm(config.width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.out(x)
        return out


class LyricEncoder(nn.Module):
    """`forward(x [B, T, D])` -> `[B, T, D]`, of the rows of tokens."""

    def __init__(self, config: LyricEncoderConfig) -> None:
        super().__init__()
        self.width = config.width
        self.embed = LyricEmbedder(config)
        self.encoders = nn.ModuleList(LyricBlock(config) for _ in range(config.num_blocks))
        self.after_norm = nn.LayerNorm(config.width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x) * math.sqrt(self.width)
        waves = distance_waves(x.shape[1], self.width, x.device).to(x.dtype)
        for block in self.encoders:
            x = block(x, waves)
        out: torch.Tensor = self.after_norm(x)
        return out
