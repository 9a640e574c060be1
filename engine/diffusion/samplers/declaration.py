"""Declaration of samplers: what a sampler is called and what it costs stands at its function, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

from darkroom.engine.diffusion.samplers.base import SamplerFunction

Function = TypeVar("Function", bound=SamplerFunction)

DECLARED: Final = "declared_samplers"
"""Attribute of a function with its declarations."""


@dataclass(frozen=True, slots=True)
class SamplerDeclaration:
    """A name that nodes offer.

    `function` is the one that samples under that name. `evaluations_per_step` are those of the network, None where the
    sampler decides. `is_deterministic` means that it generates no noise, and samples each item of a batch as it would
    sample that item alone. Other processes get both as `SamplerFacts` (`contract/graph/facts.py`), which are derived
    from this declaration alone, by `facts_of_samplers` where nodes offer samplers.
    """

    name: str
    function: SamplerFunction
    evaluations_per_step: int | None
    is_deterministic: bool


def sampler(
    name: str,
    *,
    evaluations_per_step: int | None,
    deterministic: bool,
    flow: Callable[[SamplerFunction], SamplerFunction] | None = None,
    **options: object,
) -> Callable[[Function], Function]:
    """Declare a function as the sampler `name`; one function may be declared under several names.

    `flow` adapts it to models that are read as a rectified flow (`flow.py`); without it the function holds for them as
    it stands. `options` are those of the function under this name.
    """

    def declare(function: Function) -> Function:
        sampling: SamplerFunction = partial(function, **options) if options else function
        sampling = sampling if flow is None else flow(sampling)
        declaration = SamplerDeclaration(name, sampling, evaluations_per_step, deterministic)
        setattr(function, DECLARED, (*declarations_of(function), declaration))
        return function

    return declare


def declarations_of(value: object) -> tuple[SamplerDeclaration, ...]:
    """Return the declarations of a function, the innermost first; none for any other value."""
    found: tuple[SamplerDeclaration, ...] = getattr(value, DECLARED, ())
    return found
