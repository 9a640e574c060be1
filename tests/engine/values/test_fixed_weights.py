"""Weights that patches leave as they are: those of modules with further layers, as in ComfyUI."""

from __future__ import annotations

import torch
from torch import nn

from engine.values.module_patcher import fixed_weights


class Tabled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(2))
        self.layer = nn.Linear(2, 2)
        self.activation = nn.Sequential(nn.SiLU(), nn.LayerNorm(2))


def test_the_own_weights_of_a_module_with_further_layers_are_fixed() -> None:
    assert fixed_weights(Tabled()) == {"table"}
    assert fixed_weights(nn.ModuleDict({"block": Tabled()})) == {"block.table"}


def test_layers_without_further_ones_are_patched() -> None:
    assert fixed_weights(nn.Sequential(nn.Linear(2, 2), nn.SiLU())) == set()
