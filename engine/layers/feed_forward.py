"""The feed-forward layers of transformers that diffusers has saved: two layers with GELU between.

`B` batch, `T` tokens, `D` hidden size.
"""

from __future__ import annotations

import torch
from torch import nn

from darkroom.engine.layers.basic import Linear
from darkroom.engine.layers.transformer_layers import Gelu


class FeedForward(nn.Module):
    """Two layers with GELU between, under the names of diffusers: `forward(x [B, T, D])` -> `[B, T, D]`."""

    def __init__(self, hidden_size: int, intermediate_size: int, *, has_bias: bool = True) -> None:
        super().__init__()
        first = nn.ModuleDict({"proj": Linear(hidden_size, intermediate_size, bias=has_bias)})
        self.net = nn.ModuleDict({"0": first, "2": Linear(intermediate_size, hidden_size, bias=has_bias)})
        self.activation = Gelu("tanh")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first: nn.Module = self.net["0"]
        assert isinstance(first, nn.ModuleDict)
        out: torch.Tensor = self.net["2"](self.activation(first["proj"](x)))
        return out
