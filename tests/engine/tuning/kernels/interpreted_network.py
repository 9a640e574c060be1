"""Computes one small transformer with all its shared layers fused, on a CPU in Triton's interpreter.

    TRITON_INTERPRET=1 python -m tests.engine.tuning.kernels.interpreted_network flux

Written as one JSON object: the relative `error` against the plain network, how many layers were called fused
(`num_calls`), and which classes computed plainly after all (`plain`).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from darkroom.engine.tuning.fused_forwards import FUSED
from darkroom.engine.tuning.strategy import replace_forwards
from tests.engine.layers.small_transformers import small_transformer


class Calls:
    """Calls of fused forward functions, and those that the plain ones got from them."""

    def __init__(self) -> None:
        self.num_fused = 0
        self.plain: set[str] = set()

    def fused(self, layer: nn.Module) -> Callable[..., Any]:
        """Return the layer's fused forward function, counted."""
        forward = FUSED[type(layer)](layer)

        def counted(*args: Any, **kwargs: Any) -> Any:
            self.num_fused += 1
            return forward(*args, **kwargs)

        return counted

    def watch(self, kind: type[nn.Module]) -> None:
        """Note when the plain forward function of a class is called."""
        plain = kind.forward

        def noted(layer: nn.Module, *args: Any, **kwargs: Any) -> Any:
            self.plain.add(kind.__name__)
            return plain(layer, *args, **kwargs)

        kind.forward = noted


def tensors_of(result: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors of a network's result, or of a control's: one, some, or lists of them by kind."""
    if isinstance(result, torch.Tensor):
        yield result
    elif result is not None:
        for item in result.values() if isinstance(result, dict) else result:
            yield from tensors_of(item)


def main(name: str) -> None:
    """Compare the network of this name with itself."""
    calls = Calls()
    with torch.inference_mode():
        network, inputs = small_transformer(name)
        plain = list(tensors_of(network(**inputs)))
        for kind in FUSED:
            calls.watch(kind)
        replace_forwards([(layer, calls.fused(layer)) for layer in network.modules() if type(layer) in FUSED])
        found = list(tensors_of(network(**inputs)))
    errors = [
        float((one.double() - other.double()).norm() / other.double().norm())
        for one, other in zip(found, plain, strict=True)
    ]
    sys.stdout.write(json.dumps({"error": max(errors), "num_calls": calls.num_fused, "plain": sorted(calls.plain)}))


if __name__ == "__main__":
    main(sys.argv[1])
