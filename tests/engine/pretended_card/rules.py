"""Rules of a CUDA device for each operation of torch, applied to tensors of torch's meta device.

Meta tensors have shapes, types and strides but no numbers, so an engine computes with them in no time. Where numbers
leave the device the host gets ones and zeros, but for the few that `values.py` follows.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from tests.engine.pretended_card.log import CardLog, Kind
from tests.engine.pretended_card.values import CARD, follow, known

aten = torch.ops.aten

COPIES = frozenset({aten._to_copy.default, aten.copy_.default})
# These read the shape and type of their first argument alone.
MADE_ALIKE = frozenset({
    aten.empty_like.default, aten.zeros_like.default, aten.ones_like.default, aten.full_like.default,
    aten.rand_like.default, aten.randn_like.default, aten.randint_like.default, aten.new_empty.default,
    aten.new_empty_strided.default, aten.new_zeros.default, aten.new_ones.default, aten.new_full.default,
})  # fmt: skip
TAKEN = frozenset({aten.index.Tensor, aten._unsafe_index.Tensor})
PUT = frozenset({aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default})
SEARCHES = frozenset({
    aten.nonzero.default, aten._unique2.default, aten.unique_dim.default, aten.unique_consecutive.default,
    aten.masked_select.default, aten.bincount.default,
})  # fmt: skip
# Functions by which Python's numbers become tensors. Torch makes them on its meta device without an operation.
FROM_NUMBERS = ("tensor", "as_tensor", "asarray", "new_tensor")


class MixedDevices(RuntimeError):
    """Operation on tensors of two devices, as torch raises for one on a card."""


class CardGenerator(torch.Generator):
    """Generator that may belong to the pretended card, in the place of `torch.Generator` while a card is in use."""

    is_of_card: bool

    def __new__(cls, device: Any = "cpu") -> CardGenerator:
        is_of_card = torch.device(device).type == CARD
        made: CardGenerator = super().__new__(cls, "cpu" if is_of_card else device)  # type: ignore[call-arg]
        made.is_of_card = is_of_card
        return made


@contextmanager
def card_rules(log: CardLog) -> Iterator[None]:
    """Let the meta device behave as a card while the context is open, on this thread.

    What it is asked goes into the log. Raises `MixedDevices` where a card would.
    """
    with _Functions(log), _Operations(log):
        yield


class _Functions(TorchFunctionMode):
    """Mode for what torch's operations do not show: Python's numbers that become tensors, and whose generator draws."""

    def __init__(self, log: CardLog) -> None:
        super().__init__()
        self._log = log

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name in ("__getitem__", "__setitem__") and is_of_card(args[0]):
            index = args[1] if isinstance(args[1], tuple) else (args[1],)
            if any(isinstance(item, list) and item for item in index):
                self._log.add(Kind.UPLOAD, name)
        out = func(*args, **(kwargs or {}))
        if name in FROM_NUMBERS and is_of_card(out):
            source = args[1] if name == "new_tensor" else args[0]
            if not isinstance(source, torch.Tensor):
                self._log.add(Kind.UPLOAD, name)
        generator = None if kwargs is None else kwargs.get("generator")
        if generator is not None and getattr(generator, "is_of_card", False) != is_of_card(out):
            entry = self._log.add(Kind.FOREIGN_RANDOM, name)
            raise MixedDevices(f"a generator of another device than the tensor's at {entry.line}")
        return out


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Mode that holds each operation to the rules."""

    def __init__(self, log: CardLog) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
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
        if not (any(map(is_of_card, tensors)) or _is_for_card(kwargs)):
            return func(*args, **kwargs)
        out = func(*args, **kwargs) if func in MADE_ALIKE else self._out_of(func, args, kwargs, tensors)
        follow(func, args, kwargs, out)
        return out

    def _out_of(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any], tensors: Sequence[torch.Tensor]) -> Any:
        if func in COPIES:
            return self._copied(func, args, kwargs)
        if func in TAKEN or func in PUT:
            return self._indexed(func, args, kwargs)
        self._check_devices(func, tensors)
        if func is aten._local_scalar_dense.default:
            self._log.add(Kind.READ, str(func))
            values = known(args[0])
            return _number(args[0].dtype) if values is None else values.item()
        if func is aten.equal.default:
            self._log.add(Kind.READ, str(func))
            return True
        if func in SEARCHES or (func is aten.repeat_interleave.Tensor and kwargs.get("output_size") is None):
            self._log.add(Kind.SEARCH, str(func))
            return _of_ones(func, args, kwargs)
        return func(*args, **kwargs)

    def _copied(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        if func is aten.copy_.default:
            target, source = args[:2]
            if target.device == source.device:
                return func(*args, **kwargs)
            self._log.add(Kind.UPLOAD if is_of_card(target) else Kind.DOWNLOAD, str(func))
            return target if is_of_card(target) else target.copy_(_or_zeros(source))
        source, asked = args[0], kwargs.get("device")
        target_type = source.device.type if asked is None else torch.device(asked).type
        if target_type == source.device.type:
            return func(*args, **kwargs)
        self._log.add(Kind.UPLOAD if target_type == CARD else Kind.DOWNLOAD, str(func))
        shown = torch.empty_like(source, device=CARD)
        kept = func(shown, **{**kwargs, "device": torch.device(CARD)})  # for its type, layout and strides
        if target_type == CARD:
            return kept
        return torch.empty_like(kept, device="cpu").copy_(_or_zeros(source))

    def _indexed(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Take or put elements: torch copies an index of the host, and searches a mask unless it only fills there."""
        values = args[2:3] if func in PUT else ()
        if not is_of_card(args[0]):
            self._refuse(func, [args[0]])
        if any(value.ndim and not is_of_card(value) for value in values):
            self._refuse(func, [value for value in values if not is_of_card(value)])
        indices = [index for index in args[1] if index is not None]
        if not all(map(is_of_card, indices)):
            self._log.add(Kind.UPLOAD, f"{func} with an index of the host")
        masks = [index for index in indices if index.dtype in (torch.bool, torch.uint8)]
        is_filled = len(masks) == len(indices) == 1 and any(value.numel() == 1 for value in values)
        if masks and not is_filled:
            self._log.add(Kind.SEARCH, str(func))
        if masks:
            return args[0] if func in PUT else _of_ones(func, args, kwargs)
        return func(*tree_map(_on_card, tuple(args)), **kwargs)

    def _check_devices(self, func: Any, tensors: Sequence[torch.Tensor]) -> None:
        """Raise `MixedDevices` for tensors of two devices.

        A host tensor without dimensions may be an operand of pointwise operations, as a number.
        """
        on_host = [item for item in tensors if not is_of_card(item)]
        if on_host and (torch.Tag.pointwise not in func.tags or any(item.ndim for item in on_host)):
            self._refuse(func, on_host)

    def _refuse(self, func: Any, on_host: Sequence[torch.Tensor]) -> None:
        entry = self._log.add(Kind.MIXED, str(func))
        shapes = ", ".join(f"{list(item.shape)} {item.dtype}" for item in on_host)
        raise MixedDevices(f"tensors of two devices: host tensors {shapes} in {entry.operation} at {entry.line}")


def is_of_card(value: Any) -> bool:
    """Return True for a tensor of the pretended card."""
    return isinstance(value, torch.Tensor) and value.device.type == CARD


@functools.cache
def is_composite(func: Any) -> bool:
    """Return True for an operation that torch computes by others."""
    if func.namespace == "prim":  # questions to a tensor, which torch's dispatcher does not have
        return False
    key = "CompositeImplicitAutograd"
    return bool(func._can_decompose() and torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), key))


def tensors_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    """Return the tensors among an operation's arguments, those in lists too."""
    found = []
    for value in (*args, *kwargs.values()) if kwargs else args:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found += [item for item in value if isinstance(item, torch.Tensor)]
    return found


def _is_for_card(kwargs: Mapping[str, Any]) -> bool:
    device = kwargs.get("device")
    return device is not None and torch.device(device).type == CARD


def _number(dtype: torch.dtype) -> bool | int | float:
    if dtype is torch.bool:
        return False
    return 1.0 if dtype.is_floating_point else 1


def _or_zeros(tensor: torch.Tensor) -> torch.Tensor:
    values = known(tensor)
    return torch.zeros(tensor.shape, dtype=tensor.dtype, device="cpu") if values is None else values


def _of_ones(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return the result of an operation whose shape depends on values, as if all of them were ones."""
    ones_args, ones_kwargs = tree_map(_ones, (tuple(args), dict(kwargs)))
    return tree_map(_on_card, func(*ones_args, **ones_kwargs))


def _ones(value: Any) -> Any:
    if not is_of_card(value):
        return value
    values = known(value)
    return torch.ones(value.shape, dtype=value.dtype, device="cpu") if values is None else values


def _on_card(value: Any) -> Any:
    return torch.empty_like(value, device=CARD) if isinstance(value, torch.Tensor) else value
