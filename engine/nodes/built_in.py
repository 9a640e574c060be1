"""All built-in node classes: those of the topics in `library/`, then those made for one model family.

A module of the library, and `nodes` of a family's folder (a file or a package), is found by its being there. It has its
classes in `NODES`.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable, Iterator

from darkroom.engine.families import registry
from darkroom.engine.nodes import library
from darkroom.engine.nodes.base import NodeClass


def built_in_nodes() -> tuple[NodeClass, ...]:
    """Return every built-in node class, by the names of the modules."""
    modules = pkgutil.walk_packages(library.__path__, f"{library.__name__}.")
    return (*_nodes_in(item.name for item in modules if not item.ispkg), *nodes_of_families())


def nodes_of_families() -> tuple[NodeClass, ...]:
    """Return the node classes made for one model family, by the names of their folders."""
    return tuple(_nodes_in(registry.modules_of_families("nodes")))


def _nodes_in(names: Iterable[str]) -> Iterator[NodeClass]:
    for name in names:
        yield from getattr(importlib.import_module(name), "NODES", ())
