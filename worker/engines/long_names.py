"""Names of nodes and classes that are invalid by their length: a message about them would be as long. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from darkroom.worker.errors import Problem
from darkroom.worker.json.values import JsonObject

MAX_NAME_LENGTH = 1000


def find_long_names(prompt: JsonObject) -> list[Problem]:
    """Return the problem of every node whose id or class is too long."""
    return [
        Problem(
            f"{what}: too long; got {len(name)} characters, expected at most {MAX_NAME_LENGTH}", field="workflow_json"
        )
        for node_id, node in prompt.items()
        for what, name in (("A node id", node_id), ("A class_type", _class_of(node)))
        if len(name) > MAX_NAME_LENGTH
    ]


def _class_of(node: object) -> str:
    class_type = node.get("class_type") if isinstance(node, Mapping) else None
    return class_type if isinstance(class_type, str) else ""
