"""Functions and classes of sampling that custom nodes have replaced.

A function marked `@replaceable` is called as any other, and the running engine's replacement of it is called instead.
A class is replaced too where it is made through `replacement_of`. The replacements belong to one engine, which makes
them current for each run (`sampling_tables.py`); outside of a run nothing is replaced. Code that wraps a function needs
ours itself (`own`), or the wrapper would call itself.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T", bound=Hashable)


class Replacements:
    """Map from our function or class to its replacement. A marked function is its own key."""

    def __init__(self) -> None:
        self._by_original: dict[Hashable, object] = {}

    def put(self, original: Hashable, value: object) -> None:
        self._by_original[original] = value

    def get(self, original: T) -> T:
        """Return the replacement, or the original where there is none."""
        found: T = self._by_original.get(original, original)  # type: ignore[assignment]
        return found

    @contextmanager
    def active(self) -> Iterator[None]:
        """Make these replacements current while the context is open."""
        token = _CURRENT.set(self)
        try:
            yield
        finally:
            _CURRENT.reset(token)


_CURRENT: ContextVar[Replacements | None] = ContextVar("replacements", default=None)


def replacement_of(original: T) -> T:
    """Return the running engine's replacement of a function or class of ours, or the original."""
    current = _CURRENT.get()
    return original if current is None else current.get(original)


def replaceable(function: Callable[P, R]) -> Callable[P, R]:
    """Mark a function that custom nodes may replace."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        found = replacement_of(call)
        return function(*args, **kwargs) if found is call else found(*args, **kwargs)

    return call


def own(function: Callable[P, R]) -> Callable[P, R]:
    """Return a marked function itself, without its replacement."""
    found: Callable[P, R] = vars(function)["__wrapped__"]
    return found
