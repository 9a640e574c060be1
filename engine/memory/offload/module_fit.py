"""Agreement of a module with the weights that were found in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import nn

from darkroom.engine.memory.offload.weight import Weight

Foreign = tuple[nn.Module, str, torch.Tensor]  # a layer, and a tensor by its name in it


def fits(module: nn.Module, weights: Mapping[str, Weight]) -> bool:
    """Return False where the module got or lost weights, or tensors of its own. Not while a layer computes."""
    found: dict[str, torch.Tensor] = {}
    seen: set[int] = set()
    for path, layer in module.named_modules():
        for name, tensor in (*layer._parameters.items(), *layer._buffers.items()):
            if tensor is not None and id(tensor) not in seen:
                seen.add(id(tensor))
                found[f"{path}.{name}" if path else name] = tensor
    return found.keys() == weights.keys() and all(weight.is_shown for weight in weights.values())


def foreign_tensors(weights: Mapping[str, Weight]) -> Sequence[Foreign]:
    """Return the tensors that a module got from elsewhere in the place of its weights."""
    return [
        (owner, name, tensor)
        for weight in weights.values()
        if not weight.is_shown
        for owner, name in weight.owners
        if (tensor := owner._buffers.get(name, owner._parameters.get(name))) is not None
    ]


def put_back(foreign: Sequence[Foreign]) -> None:
    """Put tensors into their layers."""
    for owner, name, tensor in foreign:
        if isinstance(tensor, nn.Parameter):
            owner._parameters[name] = tensor
        else:
            owner._buffers[name] = tensor
