"""Feed-forward layers of transformers, by the names that their files have.

`B` batch, `T` tokens, `D` hidden size.
"""

from __future__ import annotations

import torch
from torch import nn

from darkroom.engine.layers.basic import Linear
from darkroom.engine.layers.transformer_layers import GatedActivation, Gelu


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


class GatedFeedForward(nn.Module):
    """Two layers whose product, the first through SiLU, passes a third, without biases: `forward(x [..., D])`.

    Shazeer 2020, arXiv 2002.05202. With `clamps_product` float16 overflows of the product are clamped.
    """

    def __init__(self, hidden_size: int, intermediate_size: int, *, clamps_product: bool = False) -> None:
        super().__init__()
        self.w1, self.w3 = (Linear(hidden_size, intermediate_size, bias=False) for _ in range(2))
        self.w2 = Linear(intermediate_size, hidden_size, bias=False)
        self.activation = GatedActivation(clamps_product=clamps_product)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [..., D]."""
        out: torch.Tensor = self.w2(self.activation(self.w1(x), self.w3(x)))
        return out
