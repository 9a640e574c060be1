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
    """The Python class behind a built-in node: its module, and its method with the parameters in order."""

    module: str
    class_name: str
    method: str | None
    parameters: Sequence[str]


@dataclass(frozen=True, slots=True)
class KnownNames:
    modules: Mapping[str, frozenset[str]]
    nodes: Mapping[str, NodeMethod]

    def has(self, module: str, name: str) -> bool:
        return name in self.modules.get(module, ()) or f"{module}.{name}" in self.modules


def read_known_names() -> KnownNames:
    data = json.loads(Path(__file__).with_name("known_names.json").read_text("utf-8"))
    return KnownNames(
        {name: frozenset(names.split()) for name, names in data["modules"].items()},
        {class_type: NodeMethod(*entry) for class_type, entry in data["nodes"].items()},
    )
