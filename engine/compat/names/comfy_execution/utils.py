"""`comfy_execution.utils`: which node runs."""

from __future__ import annotations

from typing import NamedTuple

from engine.nodes.running_call import running_context


class ExecutionContext(NamedTuple):
    prompt_id: str
    node_id: str
    list_index: int | None


def get_executing_context() -> ExecutionContext | None:
    """None outside of a node's call."""
    context = running_context()
    return None if context is None else ExecutionContext(context.prompt_id, context.node_id, context.list_index)
