"""Rules of CUDA graph capture, checked while the work that is to be captured runs once without a capture.

What a capture refuses invalidates it, and what it does not see (a value that the host read) is repeated by every replay
as it was. Both are found here operation by operation, on any device that is not the host, torch's meta device included.
"CUDA Graphs", https://docs.nvidia.com/cuda/cuda-c-programming-guide/#cuda-graphs; "CUDA semantics", torch's notes.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

COMPOSITE = "CompositeImplicitAutograd"

COPIES = frozenset({"_to_copy", "copy_", "copy", "_copy_from", "_copy_from_and_resize"})
READS = frozenset({"_local_scalar_dense", "equal", "is_nonzero", "allclose", "item"})
SIZED_BY_DATA = frozenset({
    "nonzero", "masked_select", "_unique", "_unique2", "unique_dim", "unique_consecutive", "unique_dim_consecutive",
    "bincount", "histc", "argwhere", "_ctc_loss", "segment_reduce", "_nested_tensor_from_mask",
})  # fmt: skip
WAITS = frozenset({
    "_linalg_check_errors", "_linalg_det", "_linalg_eigh", "_linalg_eigvals", "_linalg_svd", "linalg_eig",
    "linalg_lstsq", "linalg_qr", "geqrf",
})  # fmt: skip
PINNED = frozenset({"_pin_memory", "pin_memory"})
OTHER_STREAMS = frozenset({"record_stream"})
FRESH = frozenset({"lift_fresh", "lift"})  # by which torch hands over a tensor that it has made of Python's numbers

FROM_NUMBERS = ("tensor", "as_tensor", "asarray", "new_tensor")
INDEXING = ("__getitem__", "__setitem__")

ENGINE = str(Path(__file__).parents[1])  # as code objects name it: of a checkout by way of a link


class CaptureRefused(RuntimeError):
    """The work holds an operation that a CUDA graph cannot.

    `operation` is torch's name, `reason` the rule that it breaks, `where` the line of the engine that called it.
    """

    def __init__(self, operation: str, reason: str, where: str) -> None:
        super().__init__(f"{operation}: {reason}; at {where}")
        self.operation = operation
        self.reason = reason
        self.where = where


class CaptureRules(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Mode that raises `CaptureRefused` at the first operation that a CUDA graph cannot hold.

    Refused are copies between host and device (also from pinned memory: the graph would hold an address that is used
    anew), results that the host reads, shapes that depend on data, operations of host and device tensors together,
    host values from outside of the work (each replay would repeat those of the capture), random numbers of a generator
    that is neither the device's own nor one of `generators`, random numbers of the host, pinned memory, and tensors of
    other streams. Operations of host tensors alone are allowed.
    """

    def __init__(self, generators: Collection[torch.Generator] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._generators: tuple[Any, ...] = tuple(generators)
        self._own: dict[int, torch.Tensor] = {}  # host tensors made by the work, which keeps their identities unique
        self._made: set[int] = set()  # memory on the device that the work has allocated
        self._read: dict[int, torch.Tensor] = {}

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Return True: compiled code runs as it is. Else torch would run it plainly, from here on for ever."""
        return True

    @classmethod
    def is_infra_mode(cls) -> bool:
        """Return True: the same, for versions of torch that ask only this."""
        return True

    @property
    def read(self) -> tuple[torch.Tensor, ...]:
        """Tensors on the device that the work has used and not made, one for each piece of memory."""
        return tuple(self._read.values())

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        if _is_composite(func):
            with self:
                out = func.decompose(*args, **given)
            if out is not NotImplemented:
                return out
        name = func.__name__.partition(".")[0]
        tensors = [item for item in tree_leaves((args, given)) if isinstance(item, torch.Tensor)]
        reason = self._broken_rule(func, name, tensors, args, given)
        if reason is not None:
            raise CaptureRefused(str(func), reason, _line_of_engine())
        self._note_read(tensors)
        out = func(*args, **given)
        results = [item for item in tree_leaves(out) if isinstance(item, torch.Tensor)]
        if any(not is_host(item) for item in tensors) and any(is_host(item) and item.ndim for item in results):
            raise CaptureRefused(str(func), "the host reads a result of the device", _line_of_engine())
        if name in FRESH or all(self._is_own(item) for item in tensors if is_host(item)):
            self._own.update((id(item), item) for item in results if is_host(item))
        self._made.update(
            memory_of(item) for item in results if not is_host(item) and memory_of(item) not in self._read
        )
        return out

    def _note_read(self, tensors: Sequence[torch.Tensor]) -> None:
        for tensor in tensors:
            if not is_host(tensor) and memory_of(tensor) not in self._made:
                self._read.setdefault(memory_of(tensor), tensor)

    def _broken_rule(
        self, func: Any, name: str, tensors: Sequence[torch.Tensor], args: tuple[Any, ...], given: Mapping[str, Any]
    ) -> str | None:
        device = [item for item in tensors if not is_host(item)]
        host = [item for item in tensors if is_host(item)]
        if name in PINNED or given.get("pin_memory"):
            return "pinned memory is allocated"
        generator = _generator_of(func, args, given)
        if generator is not False and not self._may_draw(generator, device, given):
            return "random numbers of a generator that no graph advances"
        if name in READS and (device or not all(self._is_own(item) for item in host)):
            return "the host reads a value"
        if name in FRESH:
            return "numbers of the host are copied to the device" if device else None
        if name in COPIES:
            return _broken_by_copy(name, args, given)
        if not device:
            return None
        return _broken_on_device(name, args, given) or self._broken_by_host(host)

    def _broken_by_host(self, host: Sequence[torch.Tensor]) -> str | None:
        if any(item.ndim for item in host):
            return "tensors of host and device are mixed"
        if not all(self._is_own(item) for item in host):
            return "a number of the host from outside of the work is used"
        return None

    def _may_draw(self, generator: Any, device: Sequence[torch.Tensor], given: Mapping[str, Any]) -> bool:
        if generator is not None:
            return any(generator._cdata == item._cdata for item in self._generators)
        target = given.get("device")
        return bool(device) or (target is not None and torch.device(target).type != "cpu")

    def _is_own(self, tensor: torch.Tensor) -> bool:
        return id(tensor) in self._own


class HostNumbers(TorchFunctionMode):
    """Mode that raises `CaptureRefused` where Python's numbers become a tensor on the device.

    With a CUDA device `CaptureRules` sees that by itself. Torch makes such a tensor on its meta device without an
    operation: tests on one need this mode, too. Compiled code would be compiled anew under it.
    """

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if name in INDEXING and not is_host(args[0]):
            index = args[1] if isinstance(args[1], tuple) else (args[1],)
            if any(isinstance(item, list) and item for item in index):
                raise CaptureRefused(name, "numbers of the host are copied to the device", _line_of_engine())
        out = func(*args, **given)
        if name in FROM_NUMBERS and isinstance(out, torch.Tensor) and not is_host(out):
            source = args[1] if name == "new_tensor" else args[0]
            if not isinstance(source, torch.Tensor):
                raise CaptureRefused(name, "numbers of the host are copied to the device", _line_of_engine())
        return out


@contextmanager
def capture_rules(
    generators: Collection[torch.Generator] = (), *, watches_numbers: bool = False
) -> Iterator[CaptureRules]:
    """Raise `CaptureRefused` at what a CUDA graph cannot hold while the context is open.

    `watches_numbers` is for torch's meta device, see `HostNumbers`.
    """
    with ExitStack() as modes:
        if watches_numbers:
            modes.enter_context(HostNumbers())
        yield modes.enter_context(CaptureRules(generators))


def is_host(tensor: torch.Tensor) -> bool:
    """Return True for a tensor in the host's memory."""
    return tensor.device.type == "cpu"


def memory_of(tensor: torch.Tensor) -> int:
    """Return the identity of a tensor's memory among all that is allocated now."""
    found: int = tensor.untyped_storage()._cdata
    return found


def _broken_by_copy(name: str, args: tuple[Any, ...], given: Mapping[str, Any]) -> str | None:
    if name == "_to_copy":
        source, target = is_host(args[0]), given.get("device")
        to_host = source if target is None else torch.device(target).type == "cpu"
    else:  # copy_(to, from), _copy_from(from, to)
        first, second = is_host(args[0]), is_host(args[1])
        source, to_host = (first, second) if name.startswith("_copy") else (second, first)
    if source == to_host:
        return None
    return f"a tensor of the {'host' if source else 'device'} is copied to the {'host' if to_host else 'device'}"


def _broken_on_device(name: str, args: tuple[Any, ...], given: Mapping[str, Any]) -> str | None:
    if name in SIZED_BY_DATA or (name == "repeat_interleave" and given.get("output_size") is None):
        return "the shape of the result depends on data"
    if name in WAITS:
        return "the host waits for the device"
    if name in OTHER_STREAMS:
        return "memory is used by another stream"
    if name.startswith(("index", "_index_put", "_unsafe_index")) and any(_is_mask(item) for item in _indices(args)):
        return "the shape of the result depends on data"
    return None


def _indices(args: tuple[Any, ...]) -> Sequence[object]:
    found = args[1] if len(args) > 1 else ()
    return found if isinstance(found, (list, tuple)) else ()


def _is_mask(item: object) -> bool:
    return isinstance(item, torch.Tensor) and item.dtype in (torch.bool, torch.uint8)


def _is_composite(func: Any) -> bool:
    """Return True for an operation that is made of others, which arrives as a whole in inference mode."""
    if func.namespace == "prim":  # questions to a tensor, which torch's dispatcher does not have
        return False
    return bool(func._can_decompose() and torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), COMPOSITE))


def _generator_of(func: Any, args: tuple[Any, ...], given: Mapping[str, Any]) -> Any:
    """Return the generator of an operation that draws random numbers, None for the device's own, else False."""
    for number, argument in enumerate(func._schema.arguments):
        if argument.name == "generator":
            return given.get("generator", args[number] if number < len(args) else None)
    if torch.Tag.nondeterministic_seeded in func.tags and func.__name__.startswith(("rand", "normal", "bernoulli")):
        return None  # of an overload without a generator
    return False


def _line_of_engine() -> str:
    """Return file and line of the innermost code of the engine that is running, but for this file."""
    frame = sys._getframe(1)
    innermost = "?"
    while frame is not None:
        name = frame.f_code.co_filename
        if name != __file__:
            line = f"{Path(name).name}:{frame.f_lineno}"
            if name.startswith(ENGINE):
                return f"{name[len(ENGINE) + 1 :]}:{frame.f_lineno}"
            innermost = line if innermost == "?" and "torch" not in Path(name).parts else innermost
        if frame.f_back is None:
            break
        frame = frame.f_back
    return innermost
