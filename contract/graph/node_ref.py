"""Reference to a node, for messages about a run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NodeRef:
    """Reference to the node of the graph that a message concerns.

    A node that another one expanded into has an id of its own. `display_node_id` is the node of the client's graph to
    show instead, `parent_node_id` the node that created it (None for the client's own), `real_node_id` its own id.
    """

    node_id: str
    display_node_id: str
    parent_node_id: str | None
    real_node_id: str

    @staticmethod
    def of(node_id: str) -> NodeRef:
        return NodeRef(node_id, node_id, None, node_id)
