"""Replacements that custom nodes have made of functions of sampling.

In ComfyUI whoever assigns to `comfy.samplers.sampling_function` changes sampling, because its modules find each other's
functions by name at the moment of the call. A function here that answers to such a name is marked `@replaceable(name)`:
it is called as ever, and what took its place is called instead. Who wraps a function must be given ours itself
(`own`), or the wrapper would find itself.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class Replaced:
    """ComfyUI's full name -> what was put there. Names belong to the process, as import names do."""

    def __init__(self) -> None:
        self._by_name: dict[str, Any] = {}

    def put(self, name: str, value: Any) -> None:
        self._by_name[name] = value

    def get(self, name: str, ours: T) -> T:
        """Return the replacement of that name; `ours` where there is none."""
        found: T = self._by_name.get(name, ours)
        return found

    def find(self, name: str) -> Any:
        """Return the replacement of that name, or None."""
        return self._by_name.get(name)

    def clear(self) -> None:
        self._by_name.clear()


REPLACED = Replaced()


def replaceable(name: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Mark our function that has one of ComfyUI's names."""

    def mark(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            return REPLACED.get(name, function)(*args, **kwargs)

        return call

    return mark


def own(function: Callable[P, R]) -> Callable[P, R]:
    """Return a marked function itself, without its replacement."""
    found: Callable[P, R] = vars(function)["__wrapped__"]
    return found
