"""Rules of a CUDA device for each operation of torch, applied to tensors of torch's meta device.

Meta tensors have shapes, types and strides but no numbers, so an engine computes with them in no time. Where numbers
leave the device the host gets ones and zeros.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from tests.engine.pretended_card.log import CardLog, Kind

aten = torch.ops.aten
CARD = "meta"

COPIES = (aten._to_copy.default, aten.copy_.default)
# With an index in the host's memory torch copies it to the device first.
INDEXED = (
    aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default,
    aten._unsafe_index.Tensor,
)  # fmt: skip
SEARCHES = (
    aten.nonzero.default, aten._unique2.default, aten.unique_dim.default, aten.unique_consecutive.default,
    aten.masked_select.default, aten.bincount.default,
)  # fmt: skip
# These read the shape and type of their first argument alone.
MADE_ALIKE = (
    aten.empty_like.default, aten.zeros_like.default, aten.ones_like.default, aten.full_like.default,
    aten.rand_like.default, aten.randn_like.default, aten.randint_like.default, aten.new_empty.default,
    aten.new_empty_strided.default, aten.new_zeros.default, aten.new_ones.default, aten.new_full.default,
)  # fmt: skip


class MixedDevices(RuntimeError):
    """Operation on tensors of two devices, as torch raises for one on a card."""


class CardGenerator(torch.Generator):
    """Generator that may belong to the pretended card, in the place of `torch.Generator` while a card is in use."""

    is_of_card = False

    def __new__(cls, device: Any = "cpu") -> CardGenerator:
        is_of_card = torch.device(device).type == CARD
        made = super().__new__(cls, "cpu" if is_of_card else device)
        made.is_of_card = is_of_card
        return made


class CardRules(TorchDispatchMode):
    """Dispatch mode in which the meta device behaves as a card: what it is asked goes into the log.

    Raises `MixedDevices` where a card would.
    """

    def __init__(self, log: CardLog) -> None:
        super().__init__()
        self._log = log

    def __torch_dispatch__(
        self, func: Any, types: Sequence[Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if is_composite(func):
            with self:  # without gradients torch shows such operations whole
                out = func.decompose(*args, **kwargs)
            if out is not NotImplemented:
                return out
        tensors = tensors_of(args, kwargs)
        if not any(item.device.type == CARD for item in tensors) and not _is_for_card(kwargs):
            return func(*args, **kwargs)
        if func in MADE_ALIKE:
            return func(*args, **kwargs)
        self._check_generator(func, kwargs)
        if func in COPIES:
            return self._copied(func, args, kwargs)
        if func is aten._local_scalar_dense.default:
            return self._read(func, args[0].dtype)
        if func is aten.equal.default:
            self._check_devices(func, tensors, args)
            self._log.add(Kind.READ, str(func))
            return True
        args = self._check_devices(func, tensors, args)
        found = self._searched(func, args, kwargs)
        return func(*args, **kwargs) if found is None else found

    def _copied(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        if func is aten.copy_.default:
            target, source = args[:2]
            if target.device == source.device:
                return func(*args, **kwargs)
            self._log.add(Kind.UPLOAD if target.device.type == CARD else Kind.DOWNLOAD, str(func))
            return target if target.device.type == CARD else target.zero_()
        source, asked = args[0], kwargs.get("device")
        target_type = source.device.type if asked is None else torch.device(asked).type
        if target_type == source.device.type:
            return func(*args, **kwargs)
        self._log.add(Kind.UPLOAD if target_type == CARD else Kind.DOWNLOAD, str(func))
        shown = torch.empty_like(source, device="meta")
        kept = func(shown, **{**kwargs, "device": torch.device("meta")})  # for its type, layout and strides
        return kept if target_type == CARD else torch.zeros_like(kept, device=target_type)

    def _read(self, func: Any, dtype: torch.dtype) -> bool | int | float:
        self._log.add(Kind.READ, str(func))
        if dtype is torch.bool:
            return False
        return 1.0 if dtype.is_floating_point else 1

    def _searched(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Return the result of an operation whose shape depends on values, None for any other."""
        if func in INDEXED:
            masks = [item for item in args[1] if item is not None and item.dtype in (torch.bool, torch.uint8)]
            is_filled = func not in (aten.index.Tensor, aten._unsafe_index.Tensor) and args[2].numel() == 1
            if not masks or (len(masks) == 1 and is_filled):
                return args[0] if masks else None
        elif func is aten.repeat_interleave.Tensor and kwargs.get("output_size") is not None:
            return None
        elif func not in (*SEARCHES, aten.repeat_interleave.Tensor):
            return None
        self._log.add(Kind.SEARCH, str(func))
        if func not in (aten.index.Tensor, aten._unsafe_index.Tensor) and func in INDEXED:
            return args[0]
        numbers = tree_map(_ones, (args, kwargs))
        return tree_map(_on_card, func(*numbers[0], **numbers[1]))

    def _check_devices(self, func: Any, tensors: Sequence[torch.Tensor], args: Sequence[Any]) -> Sequence[Any]:
        """Raise `MixedDevices` for tensors of two devices. Return the arguments with what torch copies on the device.

        A host tensor without dimensions may be an operand of pointwise operations, as a number.
        """
        on_host = [item for item in tensors if item.device.type != CARD]
        if not on_host:
            return args
        if func in INDEXED and args[0].device.type == CARD:
            indices = [item for item in args[1] if item is not None]
            if any(item.device.type != CARD for item in indices):
                self._log.add(Kind.UPLOAD, f"{func} with an index in the host's memory")
            moved = [None if item is None else _on_card(item) for item in args[1]]
            others = [item for item in args[2:3] if item.device.type != CARD and item.ndim]
            if not others:
                return (args[0], moved, *args[2:])
            on_host = others
        elif all(not item.ndim for item in on_host) and torch.Tag.pointwise in func.tags:
            return args
        entry = self._log.add(Kind.MIXED, str(func))
        shapes = ", ".join(f"{list(item.shape)} {item.dtype}" for item in on_host)
        raise MixedDevices(f"tensors of two devices: host tensors {shapes} in {entry.operation} at {entry.line}")

    def _check_generator(self, func: Any, kwargs: dict[str, Any]) -> None:
        generator = kwargs.get("generator")
        if generator is not None and not getattr(generator, "is_of_card", False):
            entry = self._log.add(Kind.FOREIGN_RANDOM, str(func))
            raise MixedDevices(f"a generator of the host for a tensor of the device at {entry.line}")


@functools.cache
def is_composite(func: Any) -> bool:
    """Return True for an operation that torch computes by others."""
    key = "CompositeImplicitAutograd"
    return bool(func._can_decompose() and torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), key))


def tensors_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    """Return the tensors among an operation's arguments, those in lists too."""
    values = [*args, *kwargs.values()]
    for value in values:
        if isinstance(value, (list, tuple)):
            values += value
    return [value for value in values if isinstance(value, torch.Tensor)]


def _is_for_card(kwargs: Mapping[str, Any]) -> bool:
    device = kwargs.get("device")
    return device is not None and torch.device(device).type == CARD


def _ones(value: Any) -> Any:
    is_of_card = isinstance(value, torch.Tensor) and value.device.type == CARD
    return torch.ones(value.shape, dtype=value.dtype) if is_of_card else value


def _on_card(value: Any) -> Any:
    return torch.empty_like(value, device=CARD) if isinstance(value, torch.Tensor) else value
