"""Networks compiled with `torch.compile` while a model is sampling.

J. Ansel et al., "PyTorch 2: Faster Machine Learning Through Dynamic Python Bytecode Transformation and Graph
Compilation", ASPLOS 2024. A network is compiled in the first step that uses it, once for each shape of its input.
"""

from __future__ import annotations

import importlib.util
import logging
import operator
import os
import shutil
import sysconfig
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

KEY = "torch.compile"  # of the wrapper in a model's options
OPTIONS_KEY = "torch_compile_kwargs"
BACKENDS = ("inductor", "cudagraphs")
CXX_COMPILERS = ("g++", "clang++", "c++")
C_COMPILERS = ("gcc", "clang")  # those that Triton looks for

log = logging.getLogger(__name__)


def missing_compiler(backend: object, device_type: str) -> str | None:
    """Return the problem of a backend's compiler on this machine, or None; only built-in backends have one."""
    if backend == "cudagraphs" and device_type != "cuda":
        return f"backend: not available; got cudagraphs on {device_type}, expected a CUDA device"
    if backend != "inductor":
        return None
    if device_type == "cuda" and importlib.util.find_spec("triton") is None:
        return "backend: no compiler; got inductor without Triton, expected the package triton"
    if device_type == "cuda":
        missing = missing_launcher_compiler()
        return None if missing is None else f"backend: no compiler; got inductor on a machine that {missing}"
    if not any(shutil.which(name, path=os.defpath) or shutil.which(name) for name in CXX_COMPILERS):
        found = " or ".join(CXX_COMPILERS)
        return f"backend: no compiler; got inductor on a machine without one, expected {found} in PATH"
    return None


def missing_launcher_compiler() -> str | None:
    """Return the thing that this machine lacks to compile the functions that launch Triton's kernels, or None.

    Triton does that with the system's C compiler and the headers of this Python, in the first launch of a kernel
    (`triton/runtime/build.py`).
    """
    if not any(shutil.which(name) for name in C_COMPILERS):
        return f"needs a C compiler: {' or '.join(C_COMPILERS)} in PATH"
    scheme = sysconfig.get_default_scheme()
    scheme = "posix_prefix" if scheme == "posix_local" else scheme  # as Triton chooses, for a system's Python of Debian
    header = Path(sysconfig.get_paths(scheme=scheme)["include"], "Python.h")
    return None if header.is_file() else f"needs Python's headers: {header}"


@dataclass(slots=True)
class CompiledNetworks:
    """A wrapper of `apply_model` that puts compiled networks in the place of the model's own.

    `keys` are attributes of the model, dotted. `arguments` are those of `torch.compile`. A network that cannot be
    compiled runs as it is from then on, and the log says why.
    """

    keys: Sequence[str]
    arguments: Mapping[str, Any]
    failure: str | None = None
    _compiled: dict[str, tuple[Any, Callable[..., Any]]] = field(default_factory=dict)

    def __call__(self, executor: Any, *args: Any, **kwargs: Any) -> Any:
        if self.failure is not None:
            return executor(*args, **kwargs)
        model = executor.class_obj
        originals = {key: operator.attrgetter(key)(model) for key in self.keys}
        try:
            for key, network in originals.items():
                _set(model, key, self._compiled_of(key, network))
            return executor(*args, **kwargs)
        except torch._dynamo.exc.TorchDynamoException as error:
            self.failure = _reason(error)
        finally:
            for key, network in originals.items():
                _set(model, key, network)
        log.warning("network not compiled: reason=%s", self.failure)
        return executor(*args, **kwargs)

    def _compiled_of(self, key: str, network: Any) -> Callable[..., Any]:
        """Return the compiled form of the network that the model has now: a patch may have replaced it."""
        known = self._compiled.get(key)
        if known is None or known[0] is not network:
            known = self._compiled[key] = (network, torch.compile(network, **self.arguments))
        return known[1]


def _reason(error: Exception) -> str:
    """Return one line about a failed compilation: the compiler's own error where there is one."""
    cause = getattr(error, "inner_exception", None) or error
    return f"{type(cause).__name__}: {str(cause).partition(chr(10))[0]}"


def _set(owner: object, dotted: str, value: object) -> None:
    path, _, name = dotted.rpartition(".")
    setattr(operator.attrgetter(path)(owner) if path else owner, name, value)
