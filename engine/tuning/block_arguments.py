"""Arguments of a network's blocks, taken apart into tensors and what else code depends on.

Arguments may be tensors, constants, tuples, lists and dataclasses of such, and mappings, which are options of a run.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from darkroom.engine.tuning.strategy import NETWORK_OPTIONS

CONSTANTS = (bool, int, float, str, type(None))

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and named ones."""


@dataclass(frozen=True, slots=True)
class TensorForm:
    """Form of a tensor: all that code made for it depends on."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, tensor: torch.Tensor) -> TensorForm:
        return cls(tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device)

    def zeros(self) -> torch.Tensor:
        """Return a tensor of this form, also where its elements share memory."""
        size = 1 + sum((length - 1) * step for length, step in zip(self.shape, self.stride, strict=True))
        if 0 in self.shape:
            return torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device=self.device)
        return torch.zeros(size, dtype=self.dtype, device=self.device).as_strided(self.shape, self.stride)


class NotPlain(Exception):
    """A block's argument that no compiled code can take, such as a patch of a node."""


def plain_arguments(
    positional: tuple[Any, ...], named: Mapping[str, Any], harmless: frozenset[str] = frozenset()
) -> Arguments:
    """Return the arguments with only those options that a block may read. Raises NotPlain.

    `harmless` options differ from call to call and change nothing within a block. They are left out, as code would be
    made anew for them.
    """
    return (
        tuple(_without(harmless, value) for value in positional),
        {name: _without(harmless, value) for name, value in named.items()},
    )


def form_of(arguments: Arguments) -> Hashable:
    """Return the form of arguments: equal for those that one compiled function takes. Raises NotPlain."""
    positional, named = arguments
    return tuple(map(_form, positional)), tuple((name, _form(value)) for name, value in named.items())


def with_forms(arguments: Arguments) -> Arguments:
    """Return the arguments with a `TensorForm` in the place of each tensor, which holds no memory."""
    made: Arguments = _mapped(arguments, torch.Tensor, TensorForm.of)
    return made


def with_zeros(arguments: Arguments) -> Arguments:
    """Return the arguments of `with_forms` with tensors of zeros in those forms."""
    made: Arguments = _mapped(arguments, TensorForm, TensorForm.zeros)
    return made


def _without(harmless: frozenset[str], value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    if any(value.get(name) for name in NETWORK_OPTIONS):
        raise NotPlain("nodes have put patches into the network")
    return {name: item for name, item in value.items() if name not in harmless}


def _form(value: Any) -> Hashable:
    if isinstance(value, torch.Tensor):
        return TensorForm.of(value)
    if isinstance(value, CONSTANTS):
        return type(value), value
    if isinstance(value, (torch.dtype, torch.device, torch.Size)):
        return type(value), value
    if isinstance(value, (tuple, list)):
        return type(value), tuple(map(_form, value))
    if isinstance(value, Mapping):
        return dict, tuple((name, _form(item)) for name, item in value.items())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return type(value), tuple(_form(getattr(value, field.name)) for field in dataclasses.fields(value))
    raise NotPlain(f"an argument is of the type {type(value).__name__}")


def _mapped(value: Any, kind: type[Any], change: Callable[[Any], Any]) -> Any:
    if isinstance(value, kind):
        return change(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_mapped(item, kind, change) for item in value))
    if isinstance(value, (tuple, list)) and not isinstance(value, torch.Size):
        return type(value)(_mapped(item, kind, change) for item in value)
    if isinstance(value, Mapping):
        return {name: _mapped(item, kind, change) for name, item in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type) and not isinstance(value, TensorForm):
        changed = {
            field.name: _mapped(getattr(value, field.name), kind, change)
            for field in dataclasses.fields(value)
            if field.init
        }
        return dataclasses.replace(value, **changed)
    return value
