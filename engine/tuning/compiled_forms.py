"""Functions compiled for forms of blocks, on a background thread: no step waits for the compiler.

A form is a kind of block with the form of its arguments. Each has a code object of its own, so that torch neither
counts one form against the limit of another nor tries the guards of all before it finds the right one. It is compiled
as one graph: what cannot be is a failure, never an uncompiled frame that passes for a compiled one.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import torch
from torch import nn

from darkroom.engine.tuning.barred import error_in_words
from darkroom.engine.tuning.block_arguments import Arguments, with_forms, with_zeros

MAX_FORMS = 64  # of one kind of block
MOST_FAILURES = 3  # in a row before anything was compiled
ARTIFACTS = "compiled_blocks.bin"
CONSTANTS = (bool, int, float, str, type(None), torch.dtype)

log = logging.getLogger(__name__)

FormFunction = Callable[..., Any]
"""Called with a block, its positional arguments as a tuple, and its named ones as a dictionary."""


@dataclass(frozen=True, slots=True)
class Form:
    """Kind of a block, by a number, and the form of its arguments."""

    kind: int
    arguments: Hashable


class CompiledForms:
    """Compiled functions of forms, and the forms that they are ready for.

    `folder` keeps compiled artifacts from one process to the next; None keeps none. `compile_form` makes the function
    of one form of blocks of a class; it compiles in its first call.
    """

    def __init__(
        self, folder: Path | None, compile_form: Callable[[type[nn.Module]], FormFunction] | None = None
    ) -> None:
        self._folder = folder
        self._compile = compiled_by("inductor") if compile_form is None else compile_form
        # One thread: torch compiles one frame at a time in a process, and its own workers build the kernels of one.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="compiler")
        self._lock = threading.Lock()
        self._kinds: dict[Hashable, int] = {}
        self._kind_of: weakref.WeakKeyDictionary[nn.Module, int] = weakref.WeakKeyDictionary()
        self._functions: dict[Form, FormFunction] = {}
        self._pending: dict[Form, Future[None]] = {}
        self._num_of_kind: dict[int, int] = {}
        self._ready: frozenset[Form] = frozenset()
        self._failures: dict[Form, str] = {}
        self._has_loaded = False

    @property
    def ready(self) -> frozenset[Form]:
        """The forms for which compiled code is there now."""
        return self._ready

    @property
    def failure(self) -> str | None:
        """Reason that no form could be compiled, None where one was or none has been tried often enough."""
        return self._failure_after(min(MOST_FAILURES, max(1, len(self._pending))))

    def kind_of(self, block: nn.Module) -> int:
        """Return the number of the kind of block: those of one kind share compiled code. Reads each block once."""
        with self._lock:
            found = self._kind_of.get(block)
            if found is None:
                found = self._kind_of[block] = self._kinds.setdefault(block_key(block), len(self._kinds))
            return found

    def function(self, form: Form) -> FormFunction:
        return self._functions[form]

    def ask(self, form: Form, block: nn.Module, arguments: Arguments) -> None:
        """Have the code of a form compiled, once, with this block and arguments of the form of these."""
        with self._lock:
            if form in self._pending or self._failure_after(MOST_FAILURES) is not None:
                return  # fewer failures may be all of the forms so far: others follow in the same step
            num = self._num_of_kind.get(form.kind, 0)
            if num >= MAX_FORMS:
                return
            if num == MAX_FORMS - 1:
                log.warning("no more forms compiled: class=%s forms=%d", type(block).__name__, num + 1)
            self._num_of_kind[form.kind] = num + 1
            examples = with_forms(arguments)
            self._pending[form] = self._thread.submit(self._make, form, weakref.ref(block), examples)

    def settle(self, seconds: float) -> str | None:
        """Wait until nothing is being compiled. Return why that is not so, why nothing is compiled, or None."""
        with self._lock:
            pending = tuple(self._pending.values())
        left = wait(pending, seconds).not_done
        if left:
            return f"still compiling after {seconds:.0f} s: {len(pending) - len(left)} of {len(pending)} forms are done"
        if self._failures and not self._ready:
            return next(iter(self._failures.values()))
        return None

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _failure_after(self, num: int) -> str | None:
        """Return the first failure where there were `num` of them and nothing was compiled, else None."""
        failures = list(self._failures.values())
        return failures[0] if len(failures) >= num and not self._ready else None

    def _make(self, form: Form, held: weakref.ref[nn.Module], examples: Arguments) -> None:
        block = held()
        if block is None or not self._are_together(block, form):  # the model has left: asked for again when it is back
            with self._lock:
                self._pending.pop(form, None)
                self._num_of_kind[form.kind] -= 1
            return
        try:
            self._load_artifacts()
            function = self._compile(type(block))
            with torch.inference_mode():
                positional, named = with_zeros(examples)
                function(block, positional, named)
        except Exception as error:  # noqa: BLE001 - the compiler: blocks of this form then run as they are
            self._failures[form] = error_in_words(getattr(error, "inner_exception", None) or error)
            log.warning("blocks not compiled: class=%s reason=%s", type(block).__name__, self._failures[form])
            return
        self._functions[form] = function
        self._ready = self._ready | {form}
        with self._lock:
            is_last = all(future.done() for other, future in self._pending.items() if other != form)
        if is_last:
            log.info("blocks compiled: forms=%d failed=%d", len(self._ready), len(self._failures))
            self._save_artifacts()

    def _are_together(self, block: nn.Module, form: Form) -> bool:
        """Return True where a block's weights are on one device still."""
        return len({weight.device for weight in block.parameters()}) <= 1

    def _load_artifacts(self) -> None:
        path = None if self._folder is None else self._folder / ARTIFACTS
        if not self._has_loaded and path is not None and path.is_file():
            torch.compiler.load_cache_artifacts(path.read_bytes())
        self._has_loaded = True

    def _save_artifacts(self) -> None:
        found = None if self._folder is None else torch.compiler.save_cache_artifacts()
        if found is None or self._folder is None:
            return
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            whole = self._folder / f"{ARTIFACTS}.new"
            whole.write_bytes(found[0])
            whole.replace(self._folder / ARTIFACTS)
        except OSError as error:
            log.warning("compiled artifacts not kept: reason=%s", error)


def compiled_by(backend: str | Callable[..., Any]) -> Callable[[type[nn.Module]], FormFunction]:
    """Return the function that compiles a form by a backend of `torch.compile`."""
    return partial(_compiled, backend)


def _compiled(backend: str | Callable[..., Any], kind: type[nn.Module]) -> FormFunction:
    return torch.compile(_own_code(_call, kind.__name__), dynamic=False, fullgraph=True, backend=backend)


def _call(block: nn.Module, positional: tuple[Any, ...], named: dict[str, Any]) -> Any:
    return type(block).forward(block, *positional, **named)


def _own_code(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Return the function with a code object of its own: torch keeps compiled code, and counts it, by code object."""
    code: CodeType = function.__code__.replace(co_name=f"compiled_{name}")
    return FunctionType(code, function.__globals__, code.co_name)


def block_key(block: nn.Module) -> Hashable:
    """Return all of a block that its code depends on: classes, constants, and the shapes and types of its weights."""
    return tuple(
        (
            name,
            type(module),
            tuple(
                (key, value)
                for key, value in sorted(vars(module).items())
                if not key.startswith("_") and isinstance(value, CONSTANTS)
            ),
            tuple(
                (key, tuple(weight.shape), weight.stride(), weight.dtype)
                for key, weight in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False))
            ),
        )
        for name, module in block.named_modules()
    )
