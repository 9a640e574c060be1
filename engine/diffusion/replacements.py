"""Functions and classes of sampling that custom nodes have replaced.

A function marked `@replaceable` is called as any other, and the running engine's replacement of it is called instead.
A class is replaced too where it is made through `replacement_of`. The replacements belong to one engine, and are a part
of each of its runs (`sampling_tables.py`); outside of a run nothing is replaced. Code that wraps a function needs
ours itself (`own`), or the wrapper would call itself.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from typing import ParamSpec, TypeVar

from darkroom.engine.diffusion.sampling_run import sampling_run

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T", bound=Hashable)


def replacement_of(original: T) -> T:
    """Return the running engine's replacement of a function or class of ours, or the original."""
    return sampling_run().replacement_of(original)


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
