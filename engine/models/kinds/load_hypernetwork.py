"""Hypernetwork files (pickles of AUTOMATIC1111's trainer) as networks on the CPU."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import nn

from darkroom.engine.errors import BadModelFile
from darkroom.engine.formats.pickle_file import read_pickle
from darkroom.engine.formats.refusals import refuses
from darkroom.engine.formats.unfilled import unfilled
from darkroom.engine.models.kinds.hypernetwork import ACTIVATIONS, Hypernetwork

EXPECTED = "a hypernetwork"


@refuses(EXPECTED)
def load_hypernetwork(path: Path, dtype: torch.dtype) -> Hypernetwork:
    """Load the hypernetwork of a file. Raises `BadModelFile`."""
    content = read_pickle(path)
    if not isinstance(content, Mapping):
        raise BadModelFile(path.name, "a pickle that is no dictionary", EXPECTED)
    activation = content.get("activation_func") or "linear"
    if activation not in ACTIVATIONS:
        known = f"one of {', '.join(ACTIVATIONS)}"
        raise BadModelFile(path.name, f"a hypernetwork with the activation {activation!r}", known)
    try:
        networks = {
            int(width): (_layers(pair[0], content, activation), _layers(pair[1], content, activation))
            for width, pair in content.items()
            if str(width).isdigit()
        }
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise BadModelFile(path.name, f"a hypernetwork whose layers are incomplete ({error})", EXPECTED) from error
    if not networks:
        raise BadModelFile(path.name, "a pickle without networks by width", EXPECTED)
    return Hypernetwork(networks).to(dtype).eval().requires_grad_(False)


def _layers(weights: Mapping[str, torch.Tensor], content: Mapping[str, object], activation: str) -> nn.Sequential:
    """Build linear layers in the file's order, each with its activation and, where the file has it, normalisation.

    Dropout is for training only and left out.
    """
    names = [name.removesuffix(".weight") for name in weights if name.endswith(".weight")]
    has_norm = bool(content.get("is_layer_norm", False))
    layers: list[nn.Module] = []
    step = 2 if has_norm else 1
    for index in range(0, len(names), step):
        layers.append(_filled(nn.Linear, weights, names[index]))
        # With normalisation the last linear layer is not the last name, so it counts as an inner one: ComfyUI's way.
        is_last = index == len(names) - 1
        if activation != "linear" and (not is_last or content.get("activate_output", False)):
            layers.append(ACTIVATIONS[activation]())
        if has_norm:
            layers.append(_filled(nn.LayerNorm, weights, names[index + 1]))
    return nn.Sequential(*layers)


def _filled(kind: type[nn.Linear] | type[nn.LayerNorm], weights: Mapping[str, torch.Tensor], name: str) -> nn.Module:
    weight, bias = weights[f"{name}.weight"], weights[f"{name}.bias"]
    with unfilled():
        layer = nn.LayerNorm(weight.shape[0]) if kind is nn.LayerNorm else nn.Linear(weight.shape[1], weight.shape[0])
    layer.weight = nn.Parameter(weight.float(), requires_grad=False)
    layer.bias = nn.Parameter(bias.float(), requires_grad=False)
    return layer
