"""Layouts of files: the names of a network's weights behind a prefix."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch

from darkroom.engine.families.base import Layout, Shapes, Tensors
from darkroom.engine.formats.weight_file import Item, Joined, Names, Part


def names_behind(shapes: Shapes, prefix: str) -> dict[str, str]:
    """Return the names of a file's tensors behind a prefix: without it -> with it."""
    return {name.removeprefix(prefix): name for name in shapes if name.startswith(prefix)}


def behind_first(prefixes: Sequence[str], mark: str) -> Layout:
    """Make a layout for the first of these prefixes behind which the file has the tensor `mark`."""

    def layout(shapes: Shapes) -> Names | None:
        prefix = next((prefix for prefix in prefixes if prefix + mark in shapes), None)
        return None if prefix is None else names_behind(shapes, prefix)

    return layout


def saved_behind(prefix: str, tensors: Tensors) -> dict[str, torch.Tensor]:
    """Return the tensors with their names behind a prefix."""
    return {prefix + name: tensor for name, tensor in tensors.items()}


def swapped_halves_of(name: str) -> Joined:
    """Return a tensor with its second half first: shift and scale in the other order."""
    return Joined((Part(name, 1, 2), Part(name, 0, 2)))


def composed_layout(
    prefixes: Sequence[str], marks: Sequence[str], names: Callable[[Shapes], Iterable[tuple[str, Item]]]
) -> Layout:
    """Make a layout of files whose layers are one in the network, behind the first prefix with all of the `marks`.

    `names` yields (the network's name, what of the file it is) by the shapes behind the prefix. What a file lacks is
    left out.
    """

    def layout(shapes: Shapes) -> Names | None:
        prefix = next((prefix for prefix in prefixes if all(prefix + mark in shapes for mark in marks)), None)
        if prefix is None:
            return None
        inner = {name.removeprefix(prefix): shape for name, shape in shapes.items() if name.startswith(prefix)}
        return {ours: _item_behind(prefix, item) for ours, item in names(inner) if _is_whole(item, inner)}

    return layout


def _is_whole(item: Item, shapes: Shapes) -> bool:
    parts = item.items if isinstance(item, Joined) else (item,)
    return all((part if isinstance(part, str) else part.name) in shapes for part in parts)


def _item_behind(prefix: str, item: Item) -> Item:
    if isinstance(item, Joined):
        return Joined(tuple(_part_behind(prefix, part) for part in item.items))
    return prefix + item if isinstance(item, str) else item


def _part_behind(prefix: str, part: str | Part) -> str | Part:
    return prefix + part if isinstance(part, str) else Part(prefix + part.name, part.index, part.count)
