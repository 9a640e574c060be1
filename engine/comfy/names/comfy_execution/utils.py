"""`comfy_execution.utils`: the running node."""

from __future__ import annotations

from typing import NamedTuple

from darkroom.engine.nodes.running_call import running_context


class ExecutionContext(NamedTuple):
    prompt_id: str
    node_id: str
    list_index: int | None


def get_executing_context() -> ExecutionContext | None:
    """Return the context of the running call, or None outside of a node's call."""
    context = running_context()
    return None if context is None else ExecutionContext(context.prompt_id, context.node_id, context.list_index)
