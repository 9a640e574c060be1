"""Strategies that give the layers of transformers fused forward functions."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from darkroom.engine.layers.transformer_layers import (
    AdaptiveNorm,
    GatedActivation,
    GatedResidual,
    Gelu,
    JoinedActivation,
    ResidualNorm,
    RotaryHeads,
)
from darkroom.engine.tuning.registry import make_strategies
from darkroom.engine.tuning.strategy import SamplingUse

NAMES = ("fused_rotary", "fused_modulation", "fused_activations")


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rotary, self.norm = RotaryHeads(), AdaptiveNorm()
        self.residual_norm = ResidualNorm(GatedResidual(), self.norm)
        self.joined, self.gated = JoinedActivation(Gelu()), GatedActivation()


def use_of(network: nn.Module) -> SamplingUse:
    patcher: Any = SimpleNamespace(load_device=torch.device("cuda"))
    return SamplingUse(patcher, SimpleNamespace(diffusion_model=network), {})


def replaced(network: nn.Module) -> set[str]:
    return {name for name, layer in network.named_modules() if "forward" in vars(layer)}


@pytest.mark.parametrize(
    ("name", "layers"),
    [
        ("fused_rotary", {"rotary"}),
        ("fused_modulation", {"norm", "residual_norm", "residual_norm.residual"}),
        ("fused_activations", {"joined", "gated"}),
    ],
)
def test_layers_are_replaced_and_restored(name: str, layers: set[str]) -> None:
    pytest.importorskip("triton", reason="triton is not installed")
    network, strategy = Block(), make_strategies()[name]
    undo = strategy.apply(use_of(network))
    assert replaced(network) == layers
    undo()
    assert replaced(network) == set()


@pytest.mark.parametrize("name", NAMES)
def test_networks_without_such_layers_are_left_out(name: str) -> None:
    strategy = make_strategies()[name]
    assert strategy.unfit(use_of(Block())) is None
    assert strategy.unfit(use_of(nn.Linear(2, 2))) == "the network has no layers of this kind"


def test_layers_have_no_parameters() -> None:
    assert Block().state_dict() == {}
