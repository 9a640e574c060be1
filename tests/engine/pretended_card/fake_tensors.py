"""Torch's fake tensors on a CUDA device that is not there: shapes, types and devices without numbers.

Where torch is built without CUDA some of Python's own calls look for the library that knows the current device, fake
tensors or not: a mode here computes the same without that question.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from darkroom.engine.formats.unfilled import give_memory, memory_for

CUDA = torch.device("cuda:0")  # with the number: without it torch asks for the current device

aten = torch.ops.aten

# Whose fake forms check no devices, or ask for the current one.
BY_META = frozenset({aten.convolution.default, aten.im2col.default})


@contextmanager
def fake_cuda() -> Iterator[None]:
    """Let tensors made in the block be fake ones, on `CUDA` too, whatever the build of torch.

    Operations on tensors of two devices raise RuntimeError, but for those that CUDA itself allows: copies, a host
    tensor without dimensions as a number, indices of the host.
    """
    with ExitStack() as modes:
        modes.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        modes.enter_context(NumbersRead())  # type: ignore[no-untyped-call]
        modes.enter_context(ShapesOfMeta())  # type: ignore[no-untyped-call]
        if torch.version.cuda is None:
            modes.enter_context(WithoutDeviceGuards())
        yield


def move_to_cuda(network: nn.Module) -> None:
    """Move weights and buffers without memory to the device, in a block of `fake_cuda`."""
    give_memory(network, CUDA)


def copied_to_cuda(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inputs of a network with their tensors on the device, in a block of `fake_cuda`."""
    found: dict[str, Any] = tree_map(lambda value: _copied(value, CUDA), dict(inputs))
    return found


def _copied(value: Any, device: torch.device | str) -> Any:
    return memory_for(value, device) if isinstance(value, torch.Tensor) else value


def _is_on_cuda(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == "cuda"


class NumbersRead(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Mode in which the host reads ones from tensors without numbers."""

    def __torch_dispatch__(
        self, func: Any, types: Sequence[Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        try:
            return func(*args, **(kwargs or {}))
        except DataDependentOutputException:
            if func is not aten._local_scalar_dense.default:
                raise
        dtype = args[0].dtype
        return 1.0 if dtype.is_floating_point else dtype is torch.bool or 1


class ShapesOfMeta(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Mode that computes on torch's meta device the operations whose fake forms do not serve, and checks devices."""

    def __torch_dispatch__(
        self, func: Any, types: Sequence[Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        tensors = [item for item in tree_leaves((args, given)) if isinstance(item, torch.Tensor)]
        if func not in BY_META or not any(map(_is_on_cuda, tensors)):
            return func(*args, **given)
        devices = sorted({str(item.device) for item in tensors})
        if len(devices) > 1:
            raise RuntimeError(f"{func}: tensors of two devices; got {' and '.join(devices)}, expected one")
        on_meta, given_on_meta = tree_map(lambda value: _copied(value, "meta"), (tuple(args), given))
        return tree_map(lambda value: _copied(value, CUDA), func(*on_meta, **given_on_meta))


class WithoutDeviceGuards(TorchFunctionMode):
    """Mode that computes by operations what Python's own calls compute after a question for the current device."""

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        by_operation = BY_OPERATION.get(getattr(func, "__name__", ""))
        if by_operation is None or not _is_on_cuda(args[0]):
            return func(*args, **(kwargs or {}))
        return by_operation(*args, **(kwargs or {}))


def taken(tensor: torch.Tensor, index: Any) -> torch.Tensor:
    """Return `tensor[index]`."""
    part, indices = _part(tensor, index)
    found: torch.Tensor = aten.index.Tensor(part, indices) if indices else aten.alias.default(part)
    return found


def put(tensor: torch.Tensor, index: Any, value: Any) -> None:
    """Do `tensor[index] = value`."""
    part, indices = _part(tensor, index)
    if not isinstance(value, torch.Tensor):
        value = torch.full((), value, dtype=part.dtype)
    if indices:
        aten.index_put_.default(part, indices, value.to(part.dtype))
    else:
        aten.copy_.default(part, value)


BY_OPERATION: dict[str, Callable[..., Any]] = {
    "__getitem__": taken,
    "__setitem__": put,
    "__invert__": aten.bitwise_not.default,
    "copy_": aten.copy_.default,
    "contiguous": aten.contiguous.default,
}


def _part(tensor: torch.Tensor, index: Any) -> tuple[torch.Tensor, list[torch.Tensor | None]]:
    """Return the tensor after all numbers, slices and new dimensions of an index, and the tensors that index it."""
    items = list(index) if isinstance(index, tuple) else [index]
    if not any(item is Ellipsis for item in items):
        items.append(Ellipsis)
    dimension = 0
    indices: list[torch.Tensor | None] = []
    for position, item in enumerate(items):
        if item is None:
            tensor, dimension = aten.unsqueeze.default(tensor, dimension), dimension + 1
        elif item is Ellipsis:
            dimension = tensor.ndim - sum(map(_num_dimensions, items[position + 1 :]))
        elif isinstance(item, slice):
            step = 1 if item.step is None else item.step
            tensor, dimension = aten.slice.Tensor(tensor, dimension, item.start, item.stop, step), dimension + 1
        elif isinstance(item, int) and not isinstance(item, bool):
            tensor = aten.select.int(tensor, dimension, item)
        else:
            found = item if isinstance(item, torch.Tensor) else torch.tensor(item)
            indices += [None] * (dimension - len(indices)) + [found]
            dimension += _num_dimensions(found)
    return tensor, indices


def _num_dimensions(item: Any) -> int:
    """Return the number of dimensions that an item of an index takes."""
    if item is None:
        return 0
    return item.ndim if isinstance(item, torch.Tensor) and item.dtype is torch.bool else 1
