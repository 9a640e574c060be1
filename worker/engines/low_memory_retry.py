"""Prompt that needs less memory: nodes that process an image whole are replaced by tiled ones. Pure.

It is the second attempt of a job that ran out of memory. Tiles overlap and are blended, so that the image is the same
but for small differences where they meet.
"""

from __future__ import annotations

from collections.abc import Mapping

from darkroom.contract.graph.facts import Facts
from darkroom.worker.json.values import JsonObject, object_at


def tiled_prompt(prompt: JsonObject, object_info: JsonObject) -> dict[str, object]:
    """Return the prompt with the tiled class of each node whose class declares one that the engine has.

    Inputs that only the tiled class has get its declared defaults.
    """
    facts = Facts(object_info)
    return {node_id: _tiled(node, object_info, facts) for node_id, node in prompt.items()}


def _tiled(node: object, object_info: JsonObject, facts: Facts) -> object:
    if not isinstance(node, Mapping):
        return node
    name = facts.of(node.get("class_type")).tiled_by
    if not name or name not in object_info:
        return node
    declared = object_at(object_info, name, "input", "required")
    defaults = {
        key: config[1]["default"]
        for key, config in declared.items()
        if isinstance(config, list) and len(config) > 1 and isinstance(config[1], Mapping) and "default" in config[1]
    }
    return {**node, "class_type": name, "inputs": {**defaults, **(node.get("inputs") or {})}}
