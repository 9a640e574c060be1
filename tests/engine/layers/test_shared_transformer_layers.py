"""All transformers are computed by the shared layers, so that what replaces those makes each of them faster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from darkroom.engine.families import registry
from darkroom.engine.formats.unfilled import unfilled
from darkroom.engine.layers import transformer_layers
from darkroom.engine.layers.transformer_layers import (
    AdaptiveNorm,
    GatedActivation,
    GatedResidual,
    Gelu,
    JoinedActivation,
    ResidualNorm,
    RotaryHeads,
)
from darkroom.engine.tuning.strategy import replace_forwards
from tests.engine.layers.small_transformers import TRANSFORMERS, small_transformer

KINDS = (AdaptiveNorm, GatedActivation, GatedResidual, Gelu, JoinedActivation, ResidualNorm, RotaryHeads)
STEPS: dict[str, tuple[type[nn.Module], ...]] = {
    "queries and keys": (RotaryHeads,),
    "norms": (AdaptiveNorm,),
    "residuals": (GatedResidual,),
    "norms of residuals": (ResidualNorm,),
    "activations": (Gelu, GatedActivation),
}

UNETS = {"sd15", "sd2", "sdxl", "sdxl_refiner", "svd", "zero123", "cascade"}
"""Families whose networks are no transformers."""

WITHOUT = {
    ("pixart", "queries and keys"): "they have neither norms nor positions",
    ("ace_step", "activations"): "its feed-forward layers are convolutions, whose channels lie apart in memory",
    ("qwen_image control of blocks", "queries and keys"): "it attends to nothing",
    ("qwen_image control of blocks", "residuals"): "the network adds what the layer returns",
    ("qwen_image control of blocks", "norms of residuals"): "the network adds what the layer returns",
    ("wan control of cameras", "norms of residuals"): "each norm brings the gate of what follows it",
    ("wan with faces", "residuals"): "the network adds what the layer returns",
    ("wan with faces", "norms of residuals"): "the network adds what the layer returns",
    ("wan with faces", "activations"): "attention alone",
    ("triposplat", "queries and keys"): "they are rotated before they are normalised",
}
"""Steps that a network computes by itself, or has not, and why."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if item.families else pytest.mark.slow) for name, item in TRANSFORMERS.items()]
)
@torch.inference_mode()
def test_a_transformer_computes_each_step_by_a_shared_layer(name: str) -> None:
    network, inputs = small_transformer(name)
    calls: Counter[type[nn.Module]] = Counter()
    layers = [layer for layer in network.modules() if type(layer) in KINDS]
    replace_forwards([(layer, _counted(layer, calls)) for layer in layers])
    network(**inputs)
    missing = {step for step, kinds in STEPS.items() if not any(calls[kind] for kind in kinds)}
    assert missing == {step for network_name, step in WITHOUT if network_name == name}


def test_each_family_has_a_small_transformer_or_is_a_unet() -> None:
    covered = {family for transformer in TRANSFORMERS.values() for family in transformer.families}
    assert covered | UNETS == {family.name for family in registry.families()}
    assert not covered & UNETS


def test_each_family_has_the_network_that_stands_for_it() -> None:
    for name, transformer in TRANSFORMERS.items():
        for family in map(registry.family_named, transformer.families):
            with unfilled():
                built = family.denoiser.build(family.scales["small"].denoiser)
                assert type(built) is type(transformer.build()), name


def test_shared_layers_have_no_tensors_so_that_names_in_files_stay() -> None:
    classes = [
        item
        for item in vars(transformer_layers).values()
        if isinstance(item, type) and issubclass(item, nn.Module) and item.__module__ == transformer_layers.__name__
    ]
    assert set(classes) == set(KINDS)
    for transformer in TRANSFORMERS.values():
        with unfilled():
            network = transformer.build()
        paths = [path for path, layer in network.named_modules() if type(layer) in KINDS]
        assert paths
        assert not [name for name in network.state_dict() if name.startswith(tuple(f"{path}." for path in paths))]


def _counted(layer: nn.Module, calls: Counter[type[nn.Module]]) -> Callable[..., Any]:
    """Return the layer's own forward function, which counts its calls by the layer's class."""

    def forward(*args: Any, **kwargs: Any) -> Any:
        calls[type(layer)] += 1
        return type(layer).forward(layer, *args, **kwargs)

    return forward
