"""The transformer that CLIP's text and image encoders have in common (Radford et al. 2021, arXiv 2103.00020).

`B` batch, `T` tokens, `D` width. Module names are those of the transformers library's files.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.layers.attention import attention
from darkroom.engine.layers.basic import Linear

Activation = Callable[[torch.Tensor], torch.Tensor]


def quick_gelu(x: torch.Tensor) -> torch.Tensor:
    """Return the approximation of GELU that CLIP's first models were trained with."""
    return x * torch.sigmoid(1.702 * x)


def gelu(x: torch.Tensor) -> torch.Tensor:
    return functional.gelu(x)


def gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    return functional.gelu(x, approximate="tanh")


class ClipAttention(nn.Module):
    def __init__(self, width: int, heads: int, *, is_causal: bool) -> None:
        super().__init__()
        self.heads = heads
        self.is_causal = is_causal
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (Linear(width, width) for _ in range(4))

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        out = attention(q, k, v, self.heads, mask, is_causal=self.is_causal and mask is None)
        projected: torch.Tensor = self.out_proj(out)
        return projected


class ClipMlp(nn.Module):
    def __init__(self, width: int, inner_width: int, activation: Activation) -> None:
        super().__init__()
        self.fc1, self.fc2 = Linear(width, inner_width), Linear(inner_width, width)
        self.activation = activation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.fc2(self.activation(self.fc1(x)))
        return out


class ClipLayer(nn.Module):
    """Transformer layer, [B, T, D] -> [B, T, D]."""

    def __init__(
        self, width: int, heads: int, inner_width: int, *, activation: Activation = quick_gelu, is_causal: bool = False
    ) -> None:
        super().__init__()
        self.layer_norm1 = nn.LayerNorm(width)
        self.self_attn = ClipAttention(width, heads, is_causal=is_causal)
        self.layer_norm2 = nn.LayerNorm(width)
        self.mlp = ClipMlp(width, inner_width, activation)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        x = x + self.self_attn(self.layer_norm1(x), mask)
        out: torch.Tensor = x + self.mlp(self.layer_norm2(x))
        return out
