"""Networks that are built only to be filled, or measured: their weights take no memory, and none is drawn.

Torch draws weights of its meta device, and makes tensors like them, by its decompositions. Their first use imports
eight hundred modules, sympy among them: 2 s of the processor for each process that loads a model.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

DRAWING: Final = frozenset(
    {
        nn.init.kaiming_uniform_,
        nn.init.normal_,
        nn.init.uniform_,
        torch.Tensor.normal_,
        torch.Tensor.uniform_,
    }
)


class _NothingDrawn(TorchFunctionMode):
    """Leave weights without memory as they are."""

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        given = kwargs or {}
        if function in DRAWING:
            weight = args[0] if args else given["tensor"]
            if weight.is_meta:
                return weight
        return function(*args, **given)


@contextlib.contextmanager
def unfilled() -> Iterator[None]:
    """Build networks in the block on torch's meta device."""
    with torch.device("meta"), _NothingDrawn():
        yield


def memory_for(tensor: torch.Tensor, device: torch.device | str) -> torch.Tensor:
    """Make a tensor of the same shape, type and layout on a device, its values undefined."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)


def give_memory(network: nn.Module, device: torch.device | str) -> None:
    """Move all weights and buffers to a device, their values undefined."""
    for module in network.modules():
        for name, weight in module.named_parameters(recurse=False):
            setattr(module, name, nn.Parameter(memory_for(weight, device), requires_grad=weight.requires_grad))
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, memory_for(buffer, device))
