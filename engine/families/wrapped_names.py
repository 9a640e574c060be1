"""Prefixes that trainers and exporters put before every name of a network, whatever the network is.

A program that wraps a network in a module (Lightning's `model`, ComfyUI's `diffusion_model`, `net` of Cosmos, DDP's
`module`, `_orig_mod` of `torch.compile`) saves its names behind the wrapper's. ComfyUI strips such a prefix before it
looks for a family (`unet_prefix_from_state_dict`), so no family has to list it.
"""

from __future__ import annotations

from collections.abc import Iterator

from darkroom.engine.families.base import Shapes
from darkroom.engine.formats.weight_file import Item, Joined, Names, Part, Transposed

WRAPPERS = frozenset({"model", "diffusion_model", "net", "transformer", "module", "unet", "dit", "_orig_mod"})
MAX_WRAPPERS = 4  # within one another


def wrapping_prefixes(shapes: Shapes) -> list[str]:
    """Return the prefixes of wrappers before names of a file's tensors, those of most tensors first."""
    counts: dict[str, int] = {}
    for name in shapes:
        for prefix in _wrapped_by(name):
            counts[prefix] = counts.get(prefix, 0) + 1
    return sorted(counts, key=lambda prefix: (-counts[prefix], prefix))


def _wrapped_by(name: str) -> Iterator[str]:
    prefix = ""
    for part in name.split(".", MAX_WRAPPERS)[:-1]:
        if part not in WRAPPERS:
            return
        prefix += f"{part}."
        yield prefix


def shapes_behind(prefix: str, shapes: Shapes) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the tensors behind a prefix, under their names without it."""
    return {name.removeprefix(prefix): shape for name, shape in shapes.items() if name.startswith(prefix)}


def names_with(prefix: str, names: Names) -> dict[str, Item]:
    """Return a network's weights with the prefix before the names that a file has for them."""
    return {ours: _item_with(prefix, item) for ours, item in names.items()}


def _item_with(prefix: str, item: Item) -> Item:
    if isinstance(item, Joined):
        return Joined(tuple(_part_with(prefix, part) for part in item.items))
    if isinstance(item, Transposed):
        return Transposed(prefix + item.name)
    return _part_with(prefix, item)


def _part_with(prefix: str, item: str | Part) -> str | Part:
    return prefix + item if isinstance(item, str) else Part(prefix + item.name, item.index, item.count)
