"""Weights that patches leave as they are: those of modules with further layers, as in ComfyUI."""

from __future__ import annotations

import torch
from torch import nn

from darkroom.engine.models.patching.module_patcher import is_fixed


class Tabled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(2))
        self.layer = nn.Linear(2, 2)
        self.activation = nn.Sequential(nn.SiLU(), nn.LayerNorm(2))


def fixed(network: nn.Module) -> set[str]:
    return {name for name in network.state_dict() if is_fixed(network, name)}


def test_the_own_weights_of_a_module_with_further_layers_are_fixed() -> None:
    assert fixed(Tabled()) == {"table"}
    assert fixed(nn.ModuleDict({"block": Tabled()})) == {"block.table"}


def test_layers_without_further_ones_are_patched() -> None:
    assert fixed(nn.Sequential(nn.Linear(2, 2), nn.SiLU())) == set()


def test_a_name_of_no_weight_is_not_fixed() -> None:
    assert not is_fixed(Tabled(), "other.layer.weight")
