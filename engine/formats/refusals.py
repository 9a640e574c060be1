"""Whatever the content of a model file makes its readers raise, as the refusal of that file.

Readers check what they rely on and raise `BadModelFile` themselves. What they do not foresee, a shape that makes a
layer impossible or a dictionary where a tensor belongs, ends here: at the border of every function that reads a file.
"""

from __future__ import annotations

import functools
import logging
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import torch

from darkroom.contract.errors import EngineError
from darkroom.engine.errors import BadModelFile

MAX_SHOWN_LENGTH = 200
MAX_DIMENSIONS = 64  # torch has no tensor of more
MAX_VALUES = 1 << 63

# What readers raise for content that they did not expect. A RuntimeError is torch's for shapes that do not fit.
OF_CONTENT = (
    *(ArithmeticError, AssertionError, AttributeError, BufferError, EOFError, LookupError, RecursionError),
    *(RuntimeError, StopIteration, TypeError, ValueError, struct.error),
)
# Errors of the device, which are RuntimeErrors, and of memory, which torch's processor raises as a RuntimeError.
OF_DEVICE = (torch.OutOfMemoryError, torch.AcceleratorError, NotImplementedError)
NO_MEMORY = "can't allocate memory"

Result = TypeVar("Result")
Given = ParamSpec("Given")

log = logging.getLogger(__name__)


@contextmanager
def refusing(file_name: str, expected: str) -> Iterator[None]:
    """Raise `BadModelFile` for what a file's content makes the block raise. Errors of ours and the device's pass."""
    try:
        yield
    except OF_CONTENT as error:
        if isinstance(error, (EngineError, *OF_DEVICE)) or NO_MEMORY in str(error)[:MAX_SHOWN_LENGTH]:
            raise
        log.debug("%s: refused", file_name, exc_info=error)
        raise BadModelFile(file_name, f"content that does not fit together ({shown(error)})", expected) from error


def refuses(expected: str) -> Callable[[Callable[Given, Result]], Callable[Given, Result]]:
    """Decorate a function whose first argument is a file's path (or an open file, or several), as by `refusing`."""

    def decorate(function: Callable[Given, Result]) -> Callable[Given, Result]:
        @functools.wraps(function)
        def wrapped(*args: Given.args, **kwargs: Given.kwargs) -> Result:
            with refusing(_names_of(args[0]), expected):
                return function(*args, **kwargs)

        return wrapped

    return decorate


def shown(error: BaseException) -> str:
    """Return the class of an error and the start of its message, on one line."""
    lines = str(error).splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:MAX_SHOWN_LENGTH]}".removesuffix(": ")


def find_shape_problem(shape: tuple[Any, ...]) -> str | None:
    """Return the reason why a tensor cannot have a shape that a file declares; None where it can."""
    if len(shape) > MAX_DIMENSIONS:
        return f"{len(shape):,} dimensions"
    num_values = 1
    for size in shape:
        if type(size) is not int or not 0 <= size < MAX_VALUES:
            return f"a dimension of {repr(size)[:MAX_SHOWN_LENGTH]}"
        num_values *= max(size, 1)
        if num_values >= MAX_VALUES:
            return "more values than can be counted"
    return None


def _names_of(given: Any) -> str:
    if isinstance(given, list | tuple):
        return ", ".join(map(_names_of, given))
    path = given if isinstance(given, Path) else getattr(given, "path", None)
    return path.name if isinstance(path, Path) else str(given)[:MAX_SHOWN_LENGTH]
