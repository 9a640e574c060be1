"""The state of nodes that have one (classes in ComfyUI's form), kept for as long as prompts name the node."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from darkroom.engine.runtime.cache.groups import Groups

_Key = tuple[str, str]  # node id, class name


class InstanceCache:
    def __init__(self) -> None:
        self._groups: Groups[_Key, Any] = Groups()

    def begin(self, classes: Mapping[str, str]) -> None:
        self._groups.set_members(None, set(classes.items()), classes)

    def expand(self, owner: str, classes: Mapping[str, str]) -> None:
        self._groups.set_members(owner, set(classes.items()), classes)

    def get(self, group: str | None, node_id: str, class_type: str, make: Callable[[], Any]) -> Any:
        """Return the node's state, made the first time."""
        values = self._groups[group]
        key = (node_id, class_type)
        if key not in values:
            values[key] = make()
        return values[key]

    def clear(self) -> None:
        self._groups.clear()
