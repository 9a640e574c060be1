"""A prompt whose images for a WebSocket client are saved instead: a caller over HTTP has no such socket. Pure.

Saved images outlive the engine and are delivered like all others.
"""

from __future__ import annotations

from collections.abc import Mapping

from darkroom.contract.graph.facts import Facts
from darkroom.worker.json.values import JsonObject, object_at

PREFIX = "ComfyUI"


def with_saved_images(prompt: JsonObject) -> JsonObject:
    """Return the prompt with the saving class in the place of every class of ComfyUI that only sends its images."""
    facts = Facts()
    saving = {
        node_id: _saving(node, name, facts)
        for node_id, node in prompt.items()
        if isinstance(node, Mapping) and (name := facts.of(node.get("class_type")).saved_by)
    }
    return {**prompt, **saving} if saving else prompt


def _saving(node: JsonObject, class_type: str, facts: Facts) -> dict[str, object]:
    inputs = {facts.of(class_type).saves: PREFIX, **object_at(node, "inputs")}
    return {**node, "class_type": class_type, "inputs": inputs}
