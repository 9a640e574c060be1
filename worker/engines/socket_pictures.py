"""A prompt whose pictures for a WebSocket client are saved instead: a caller over HTTP has no such socket. Pure.

Saved pictures outlive the engine and are delivered like all others.
"""

from __future__ import annotations

from collections.abc import Mapping

from worker.json.values import JsonObject, object_at

SENDING_CLASS, SAVING_CLASS = "SaveImageWebsocket", "SaveImage"
PREFIX = "ComfyUI"


def with_saved_pictures(prompt: JsonObject) -> JsonObject:
    """Return the prompt with `SaveImage` in the place of every `SaveImageWebsocket`."""
    sending = [node_id for node_id, node in prompt.items() if _class_of(node) == SENDING_CLASS]
    return {**prompt, **{node_id: _saving(prompt[node_id]) for node_id in sending}} if sending else prompt


def _class_of(node: object) -> object:
    return node.get("class_type") if isinstance(node, Mapping) else None


def _saving(node: object) -> dict[str, object]:
    inputs = {"filename_prefix": PREFIX, "images": object_at(node, "inputs").get("images")}
    return {**object_at(node), "class_type": SAVING_CLASS, "inputs": inputs}
