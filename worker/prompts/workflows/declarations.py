"""Declarations of node classes, each read once for a document however many of its nodes are of the class. Pure."""

from __future__ import annotations

from darkroom.contract.graph.spec import NodeSpec
from darkroom.worker.json.values import JsonObject
from darkroom.worker.prompts.workflows.widgets import read_class


class Declarations:
    """The declarations in an engine's `/object_info` that one document names."""

    def __init__(self, object_info: JsonObject) -> None:
        self._object_info = object_info
        self._specs: dict[str, NodeSpec | None] = {}

    def find(self, class_type: str) -> NodeSpec | None:
        """Return the declaration of a class; None for a class that the engine does not have."""
        if class_type not in self._specs:
            self._specs[class_type] = read_class(class_type, self._object_info)
        return self._specs[class_type]
