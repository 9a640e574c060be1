"""Shapes of the tensors of a file, by name, from which networks read their configuration. Pure."""

from __future__ import annotations

from collections.abc import Mapping

Shape = tuple[int, ...]
Shapes = Mapping[str, Shape]


def count_children(shapes: Shapes, name: str) -> int:
    """Count the numbered children `name.0`, `name.1`..."""
    prefix = name + "."
    numbers = {key[len(prefix) :].split(".", 1)[0] for key in shapes if key.startswith(prefix)}
    return 1 + max((int(number) for number in numbers if number.isdigit()), default=-1)
