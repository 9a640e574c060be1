"""Hypernetworks: small networks that change the keys and values of attention (as NovelAI and AUTOMATIC1111 train them).

`B` batch, `T` tokens, `D` their width.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

ACTIVATIONS: Mapping[str, type[nn.Module]] = {
    "linear": nn.Identity, "relu": nn.ReLU, "leakyrelu": nn.LeakyReLU, "elu": nn.ELU, "swish": nn.Hardswish,
    "tanh": nn.Tanh, "sigmoid": nn.Sigmoid, "softsign": nn.Softsign, "mish": nn.Mish,
}  # fmt: skip


class Hypernetwork(nn.Module):
    """A network for the keys and one for the values, per width of tokens; both keep the shape [B, T, D]."""

    def __init__(self, networks: Mapping[int, tuple[nn.Module, nn.Module]]) -> None:
        super().__init__()
        self.by_width = nn.ModuleDict({str(width): nn.ModuleList(pair) for width, pair in networks.items()})

    def forward(self, k: torch.Tensor, v: torch.Tensor, strength: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Change keys and values; tokens of a width without a network are returned unchanged."""
        width = str(k.shape[-1])
        if width not in self.by_width:
            return k, v
        networks = self.by_width.get_submodule(width)
        for_keys, for_values = networks.get_submodule("0"), networks.get_submodule("1")
        return k + for_keys(k) * strength, v + for_values(v) * strength
