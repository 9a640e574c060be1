"""Blocks of which a network has many: what is worth compiling by itself, once for all of them.

A network may declare their classes in a class attribute `repeated_blocks`. Of others they are the modules of its lists
whose class occurs there more than once, the outermost where blocks are made of blocks.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

ATTRIBUTE = "repeated_blocks"
LISTS = (nn.ModuleList, nn.ModuleDict)
CONTAINERS = (*LISTS, nn.Sequential)


def repeated_blocks(network: nn.Module) -> list[nn.Module]:
    """Return the repeated blocks of a network, in its order of modules."""
    declared: tuple[type[nn.Module], ...] = getattr(network, ATTRIBUTE, ())
    if declared:
        return [module for module in network.modules() if type(module) in declared]
    found: dict[type[nn.Module], list[nn.Module]] = {}
    for module in _members(network):
        found.setdefault(type(module), []).append(module)
    blocks: list[nn.Module] = []
    for modules in found.values():
        if len(modules) > 1:
            blocks += modules
        else:
            blocks += repeated_blocks(modules[0])
    return blocks


def _members(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the outermost modules below this one that are members of lists and made of other modules."""
    for child in module.children():
        items = child.children() if isinstance(child, LISTS) else ()
        for item in items:
            inner = _unwrapped(item)
            if isinstance(inner, CONTAINERS):
                yield from _members(inner) if isinstance(inner, nn.Sequential) else _members_of_list(inner)
            elif any(True for _ in inner.children()):
                yield inner
        if not isinstance(child, LISTS):
            yield from _members(child)


def _members_of_list(items: nn.Module) -> Iterator[nn.Module]:
    holder = nn.Module()
    holder.add_module("items", items)
    yield from _members(holder)


def _unwrapped(module: nn.Module) -> nn.Module:
    """Return the module that a wrapper without weights of its own is around, which gives the names of a file."""
    while not isinstance(module, CONTAINERS):
        children = list(module.children())
        if len(children) != 1 or isinstance(children[0], CONTAINERS) or any(True for _ in module.parameters(False)):
            break
        module = children[0]
    return module
