"""Runs small transformers with fused layers on a CPU, in Triton's interpreter, and prints how far they are from plain.

    TRITON_INTERPRET=1 python -m tests.engine.tuning.kernels.interpreted_networks float16 flux wan

Written as one JSON object by network: `error`, the relative error of its result; `fused` and `plain`, the numbers of
calls of each layer class that kernels computed, and that they left to the plain form. A process of its own, since
Triton reads the variable when kernels are defined.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from darkroom.engine.layers.transformer_layers import RotaryHeads
from darkroom.engine.tuning.fused_forwards import FUSED
from darkroom.engine.tuning.strategy import replace_forwards
from tests.engine.layers.small_transformers import small_transformer

Forward = Callable[..., Any]


class Calls:
    """Calls of fused layers by class, and those among them that were left to the plain form."""

    def __init__(self) -> None:
        self.all: Counter[str] = Counter()
        self.plain: Counter[str] = Counter()
        self._is_left = False

    def of(self, layer: nn.Module) -> Forward:
        """Return the layer's fused forward function, which counts."""
        fused, kind = FUSED[type(layer)](layer), type(layer).__name__

        def forward(*args: Any, **kwargs: Any) -> Any:
            self._is_left = False
            out = fused(*args, **kwargs)
            self.all[kind] += 1
            self.plain[kind] += self._is_left
            return out

        return forward

    def watched(self, plain: Forward) -> Forward:
        """Return a plain form that tells when a fused layer leaves its work to it."""

        def forward(*args: Any, **kwargs: Any) -> Any:
            self._is_left = True
            return plain(*args, **kwargs)

        return forward

    def figures(self) -> dict[str, dict[str, int]]:
        return {"fused": dict(self.all - self.plain), "plain": dict(+self.plain)}


def run(name: str, dtype: torch.dtype) -> dict[str, Any]:
    """Compare a network's results with plain layers and with fused ones."""
    network, inputs = small_transformer(name, dtype)
    plain = tensors_of(network(**inputs))
    calls = Calls()
    layers = [layer for layer in network.modules() if type(layer) in FUSED]
    replace_forwards([(layer, calls.of(layer)) for layer in layers])
    originals = [(kind, "plain" if kind is RotaryHeads else "forward") for kind in FUSED]
    kept = [(kind, method, getattr(kind, method)) for kind, method in originals]
    for kind, method, function in kept:
        setattr(kind, method, calls.watched(function))
    try:
        fused = tensors_of(network(**inputs))
    finally:
        for kind, method, function in kept:
            setattr(kind, method, function)
    errors = [float((a.double() - b.double()).norm() / b.double().norm()) for a, b in zip(fused, plain, strict=True)]
    return {"error": max(errors), **calls.figures()}


def tensors_of(out: Any) -> list[torch.Tensor]:
    """Return the tensors of a network's result, or of a control's, in order."""
    if isinstance(out, torch.Tensor):
        return [out]
    items = out.values() if isinstance(out, dict) else out
    return [tensor for item in items for tensor in tensors_of(item)]


def main(dtype: str, *names: str) -> None:
    """Compare all networks named."""
    with torch.inference_mode():
        sys.stdout.write(json.dumps({name: run(name, getattr(torch, dtype)) for name in names}))


if __name__ == "__main__":
    main(*sys.argv[1:])
