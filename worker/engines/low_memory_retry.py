"""Prompt that needs less memory: nodes that process a picture whole are replaced by tiled ones. Pure.

It is the second attempt of a job that ran out of memory. Tiles overlap and are blended, so that the picture is the same
but for small differences where they meet.
"""

from __future__ import annotations

from collections.abc import Mapping

from worker.json.values import JsonObject, object_at

TILED = {"VAEDecode": "VAEDecodeTiled", "VAEEncode": "VAEEncodeTiled"}


def tiled_prompt(prompt: JsonObject, object_info: JsonObject) -> dict[str, object]:
    """Return the prompt with the tiled class wherever the engine has one.

    Inputs that only the tiled class has get its declared defaults.
    """
    return {node_id: _tiled(node, object_info) for node_id, node in prompt.items()}


def _tiled(node: object, object_info: JsonObject) -> object:
    if not isinstance(node, Mapping):
        return node
    name = TILED.get(str(node.get("class_type")))
    if name is None or name not in object_info:
        return node
    declared = object_at(object_info, name, "input", "required")
    defaults = {
        key: config[1]["default"]
        for key, config in declared.items()
        if isinstance(config, list) and len(config) > 1 and isinstance(config[1], Mapping) and "default" in config[1]
    }
    return {**node, "class_type": name, "inputs": {**defaults, **(node.get("inputs") or {})}}
