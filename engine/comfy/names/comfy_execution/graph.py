"""`comfy_execution.graph`: the graph a node runs in."""

from __future__ import annotations

from typing import Any

from darkroom.contract.graph.dynamic_prompt import DynamicPrompt, NodeNotFoundError
from darkroom.contract.graph.schedule import NodeInputError
from darkroom.engine.comfy.names.comfy_execution.graph_utils import ExecutionBlocker, is_link
from darkroom.engine.runtime.run_report import DependencyCycleError

__all__ = [
    "DependencyCycleError",
    "DynamicPrompt",
    "ExecutionBlocker",
    "NodeInputError",
    "NodeNotFoundError",
    "get_input_info",
    "is_link",
]


def get_input_info(class_def: Any, input_name: str, valid_inputs: Any = None) -> tuple[Any, Any, Any]:
    """Return type, section and options of a class's input, or None three times when it has none of that name."""
    declared = class_def.INPUT_TYPES() if valid_inputs is None else valid_inputs
    for section in ("required", "optional", "hidden"):
        names = declared.get(section, {})
        # A pack's own kind of dict may hold names that its get() does not find.
        if input_name in names and (entry := names[input_name]) is not None:
            return entry[0], section, entry[1] if len(entry) > 1 else {}
    return None, None, None
