"""Shapes of the tensors of a file, by name, from which networks read their configuration. Pure."""

from __future__ import annotations

from collections.abc import Mapping

Shape = tuple[int, ...]
Shapes = Mapping[str, Shape]

MOST_DIGITS = 3  # of a child's number: networks are built from the counts before their tensors are looked for


def count_children(shapes: Shapes, name: str) -> int:
    """Count the numbered children `name.0`, `name.1`... of numbers below 1000; larger ones are no network's."""
    prefix = name + "."
    numbers = {key[len(prefix) :].split(".", 1)[0] for key in shapes if key.startswith(prefix)}
    return 1 + max((int(number) for number in numbers if number.isdecimal() and len(number) <= MOST_DIGITS), default=-1)


def expect(name: str, got: object, expected: object) -> None:
    """Raise ValueError for a size of a network, of that name, that is another than the others make it."""
    if got != expected:
        raise ValueError(f"{name}: got {got}, expected {expected}")
