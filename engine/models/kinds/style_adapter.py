"""The T2I-Adapter for style (Mou et al. 2023, arXiv 2302.08453): an image's CLIP tokens as words of a prompt.

`B` images, `T` tokens of the image encoder, `N` words, `D` its width, `C` the text's. Module names are those of
the original files, their spelling of `transformer_layes` too.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from darkroom.engine.layers.attention import attention
from darkroom.engine.layers.basic import Linear, linear
from darkroom.engine.layers.clip_layers import quick_gelu


@dataclass(frozen=True, slots=True)
class StyleAdapterConfig:
    width: int = 1024
    context_width: int = 768
    heads: int = 8
    num_layers: int = 3
    num_words: int = 8


class StyleAttention(nn.Module):
    """Self-attention whose three inputs are projected by one matrix."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.in_proj_weight = nn.Parameter(torch.empty(3 * width, width))
        self.in_proj_bias = nn.Parameter(torch.empty(3 * width))
        self.out_proj = Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = linear(x, self.in_proj_weight, self.in_proj_bias).chunk(3, dim=-1)
        out: torch.Tensor = self.out_proj(attention(q.contiguous(), k.contiguous(), v.contiguous(), self.heads))
        return out


class StyleLayer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attn = StyleAttention(width, heads)
        self.ln_1 = nn.LayerNorm(width)
        self.mlp = nn.ModuleDict({"c_fc": Linear(width, width * 4), "c_proj": Linear(width * 4, width)})
        self.ln_2 = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.ln_1(x))
        out: torch.Tensor = x + self.mlp["c_proj"](quick_gelu(self.mlp["c_fc"](self.ln_2(x))))
        return out


class StyleAdapter(nn.Module):
    def __init__(self, config: StyleAdapterConfig) -> None:
        super().__init__()
        self.config = config
        self.style_embedding = nn.Parameter(torch.empty(1, config.num_words, config.width))
        self.ln_pre, self.ln_post = nn.LayerNorm(config.width), nn.LayerNorm(config.width)
        self.transformer_layes = nn.Sequential(
            *(StyleLayer(config.width, config.heads) for _ in range(config.num_layers))
        )
        self.proj = nn.Parameter(torch.empty(config.width, config.context_width))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Convert the last hidden states [B, T, D] of an image encoder to words [B, N, C]."""
        words = self.style_embedding.expand(tokens.shape[0], -1, -1)
        x = self.transformer_layes(self.ln_pre(torch.cat([tokens, words], dim=1)))
        normed: torch.Tensor = self.ln_post(x[:, -self.config.num_words :])
        return normed @ self.proj
