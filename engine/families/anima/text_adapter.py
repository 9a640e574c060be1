"""The text adapter of Anima: tokens of T5 that read what a language model gives, in place of T5's own states.

`B` prompts, `N` tokens of T5, `T` tokens of the language model, `D` hidden size. Module names are the checkpoints'.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.layers.basic import Linear
from darkroom.engine.layers.norms import RmsNorm
from darkroom.engine.layers.shapes import Shapes, count_children
from darkroom.engine.layers.token_rotations import Rotation, rotated, rotation

THETA = 10000.0
LEAST_TOKENS = 512  # shorter texts are filled up with zeros


@dataclass(frozen=True, slots=True)
class TextAdapterConfig:
    """Configuration of the adapter. `source_dim` is the hidden size of the language model, `text_dim` of its result."""

    source_dim: int = 1024
    text_dim: int = 1024
    hidden_size: int = 1024
    head_dim: int = 64
    num_blocks: int = 6
    intermediate_size: int = 4096
    vocabulary_size: int = 32128


def text_adapter_config(shapes: Shapes) -> TextAdapterConfig:
    """Return the configuration of the adapter with these tensors (names without prefix). Raises LookupError."""
    vocabulary_size, text_dim = shapes["embed.weight"]
    intermediate_size, hidden_size = shapes["blocks.0.mlp.0.weight"]
    return TextAdapterConfig(
        source_dim=shapes["blocks.0.cross_attn.k_proj.weight"][1],
        text_dim=text_dim,
        hidden_size=hidden_size,
        head_dim=shapes["blocks.0.self_attn.q_norm.weight"][0],
        num_blocks=count_children(shapes, "blocks"),
        intermediate_size=intermediate_size,
        vocabulary_size=vocabulary_size,
    )


class AdapterAttention(nn.Module):
    """Attention from tokens [B, N, D] to a context [B, T, D'], rotated by the positions of both."""

    def __init__(self, config: TextAdapterConfig, context_dim: int) -> None:
        super().__init__()
        size, self.head_dim = config.hidden_size, config.head_dim
        self.q_proj = Linear(size, size, bias=False)
        self.k_proj, self.v_proj = (Linear(context_dim, size, bias=False) for _ in range(2))
        self.q_norm, self.k_norm = RmsNorm(config.head_dim), RmsNorm(config.head_dim)
        self.o_proj = Linear(size, size, bias=False)

    def forward(self, x: torch.Tensor, context: torch.Tensor, turns: Rotation, context_turns: Rotation) -> torch.Tensor:
        q, k, v = (
            layer(given).unflatten(-1, (-1, self.head_dim))  # [B, tokens, heads, head_dim]
            for layer, given in ((self.q_proj, x), (self.k_proj, context), (self.v_proj, context))
        )
        q = rotated(self.q_norm(q).transpose(1, 2), turns)
        k = rotated(self.k_norm(k).transpose(1, 2), context_turns)
        attended = functional.scaled_dot_product_attention(q, k, v.transpose(1, 2))
        out: torch.Tensor = self.o_proj(attended.transpose(1, 2).flatten(2))
        return out


class AdapterBlock(nn.Module):
    def __init__(self, config: TextAdapterConfig) -> None:
        super().__init__()
        size = config.hidden_size
        self.norm_self_attn, self.norm_cross_attn, self.norm_mlp = (RmsNorm(size) for _ in range(3))
        self.self_attn = AdapterAttention(config, size)
        self.cross_attn = AdapterAttention(config, config.source_dim)
        self.mlp = nn.Sequential(
            Linear(size, config.intermediate_size), nn.GELU(), Linear(config.intermediate_size, size)
        )

    def forward(self, x: torch.Tensor, source: torch.Tensor, turns: Rotation, source_turns: Rotation) -> torch.Tensor:
        normed = self.norm_self_attn(x)
        x = x + self.self_attn(normed, normed, turns, turns)
        x = x + self.cross_attn(self.norm_cross_attn(x), source, turns, source_turns)
        out: torch.Tensor = x + self.mlp(self.norm_mlp(x))
        return out


class TextAdapter(nn.Module):
    """`forward(source [B, T, D'], tokens [B, N], weights [B, N])` -> text [B, N or 512, D]."""

    def __init__(self, config: TextAdapterConfig) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocabulary_size, config.text_dim)
        is_narrower = config.text_dim != config.hidden_size
        self.in_proj = Linear(config.text_dim, config.hidden_size) if is_narrower else nn.Identity()
        self.blocks = nn.ModuleList(AdapterBlock(config) for _ in range(config.num_blocks))
        self.out_proj = Linear(config.hidden_size, config.text_dim)
        self.norm = RmsNorm(config.text_dim)

    def forward(self, source: torch.Tensor, tokens: torch.Tensor, weights: torch.Tensor | None = None) -> torch.Tensor:
        x = self.in_proj(self.embed(tokens).to(source.dtype))
        turns, source_turns = self._turns(x.shape[1], x), self._turns(source.shape[1], x)
        for block in self.blocks:
            x = block(x, source, turns, source_turns)
        text: torch.Tensor = self.norm(self.out_proj(x))
        if weights is not None:
            text = text * weights.to(text)[..., None]
        return functional.pad(text, (0, 0, 0, max(0, LEAST_TOKENS - text.shape[1])))

    def _turns(self, length: int, like: torch.Tensor) -> Rotation:
        positions = torch.arange(length, device=like.device)[None]
        cos, sin = rotation(positions, self.config.head_dim, THETA)
        return cos.to(like.dtype), sin.to(like.dtype)
