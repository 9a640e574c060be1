"""Layers whose bits depend on how many rows are computed at once, computed so many rows at a time within a batch.

In many networks they are few: small convolutions, for which libraries choose other kernels for other sizes. With them
in chunks a row has the same bits in a batch of any width, and the rest of the network has the gain of the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import torch
from torch import nn

from darkroom.engine.tuning.strategy import has_own_forward, replace_forwards

Forward = Callable[[torch.Tensor], torch.Tensor]


@contextmanager
def in_chunks(network: nn.Module, names: Sequence[str], num_rows: int) -> Iterator[None]:
    """Compute the layers of these names so many rows at a time while the context is open.

    Layers whose forward function something else has replaced are left as they are.
    """
    layers = [network.get_submodule(name) for name in names]
    undo = replace_forwards(
        [(layer, _chunked(layer.forward, num_rows)) for layer in layers if not has_own_forward(layer)]
    )
    try:
        yield
    finally:
        undo()


def _chunked(forward: Forward, num_rows: int) -> Forward:
    def in_parts(x: torch.Tensor) -> torch.Tensor:
        return forward(x) if x.shape[0] <= num_rows else torch.cat([forward(part) for part in torch.split(x, num_rows)])

    return in_parts


class VaryingLayers:
    """Names of layers that gave rows other bits in a batch than in chunks of `num_rows`."""

    def __init__(self, network: nn.Module, num_rows: int) -> None:
        self._network = network
        self._num_rows = num_rows
        self._found: set[str] = set()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self._found))

    @contextmanager
    def compared(self) -> Iterator[None]:
        """Compare the layers of each evaluation that is made while the context is open, which takes twice as long."""
        with ExitStack() as hooks:
            for name, layer in self._network.named_modules():
                if next(layer.parameters(), None) is not None and next(layer.children(), None) is None:
                    hooks.enter_context(layer.register_forward_hook(self._comparison(name)))
            yield

    def _comparison(self, name: str) -> Callable[[nn.Module, tuple[object, ...], object], None]:
        def compare(layer: nn.Module, given: tuple[object, ...], out: object) -> None:
            if name in self._found or len(given) != 1:
                return
            (x,) = given
            if not (isinstance(x, torch.Tensor) and isinstance(out, torch.Tensor) and x.ndim > 1):
                return
            if x.shape[0] > self._num_rows and x.shape[0] == out.shape[0]:
                parts = [layer.forward(part) for part in torch.split(x, self._num_rows)]
                if not torch.equal(torch.cat(parts), out):
                    self._found.add(name)

        return compare
