"""ComfyUI's import names as data: its modules, their names, and its node classes.

Distinguishes a name that this engine lacks from one that nobody has, which custom nodes probe for to detect versions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class NodeMethod:
    """The Python class behind a built-in node: its module, and its method with the parameters in order.

    `aliases` are the names that the method of a node by schema had before, and has still.
    """

    module: str
    class_name: str
    method: str | None
    parameters: Sequence[str]
    aliases: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class KnownNames:
    """The names of each module, the nodes by class name, and where a module has its imported names from.

    `imports` gives `module`, or `module:name`, by the name that a module of ComfyUI's has for it.
    """

    modules: Mapping[str, frozenset[str]]
    nodes: Mapping[str, NodeMethod]
    imports: Mapping[str, Mapping[str, str]]
    class_types: Mapping[tuple[str, str], Sequence[str]]  # nodes by their class's module and name

    @property
    def bare(self) -> frozenset[str]:
        """Modules of `comfy` that ComfyUI makes importable without it, as its folder is on the import path."""
        return frozenset(name.split(".")[1] for name in self.modules if name.startswith("comfy."))

    @property
    def roots(self) -> frozenset[str]:
        return frozenset(name.partition(".")[0] for name in self.modules)

    def has(self, module: str, name: str) -> bool:
        return name in self.modules.get(module, ()) or f"{module}.{name}" in self.modules


def read_known_names() -> KnownNames:
    data = json.loads(Path(__file__).with_name("known_names.json").read_text("utf-8"))
    class_types: dict[tuple[str, str], list[str]] = {}
    for class_type, (module, class_name, *_) in data["nodes"].items():
        class_types.setdefault((module, class_name), []).append(class_type)
    pairs = {module: [name.partition("=") for name in names.split()] for module, names in data["modules"].items()}
    return KnownNames(
        {module: frozenset(name for name, _, _ in found) for module, found in pairs.items()},
        {class_type: NodeMethod(*entry) for class_type, entry in data["nodes"].items()},
        {module: {name: source for name, _, source in found if source} for module, found in pairs.items()},
        class_types,
    )
