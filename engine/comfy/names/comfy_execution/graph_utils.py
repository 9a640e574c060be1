"""`comfy_execution.graph_utils`: building the graph that replaces a node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from darkroom.contract.graph.prompt import is_link
from darkroom.engine.nodes.base import ExecutionBlocker
from darkroom.engine.nodes.running_call import running_call

__all__ = ["ExecutionBlocker", "GraphBuilder", "Node", "add_graph_prefix", "is_link"]


class Node:
    """A node of a graph under construction; an input is a value or another node's `out(slot)`."""

    def __init__(self, id: str, class_type: str, inputs: dict[str, object]) -> None:
        self.id = id
        self.class_type = class_type
        self.inputs = inputs
        self.override_display_id: str | None = None

    def out(self, index: int) -> list[object]:
        return [self.id, index]

    def set_input(self, key: str, value: object) -> None:
        """Set an input; None removes it."""
        if value is not None:
            self.inputs[key] = value
        else:
            self.inputs.pop(key, None)

    def get_input(self, key: str) -> object:
        return self.inputs.get(key)

    def set_override_display_id(self, override_display_id: str) -> None:
        """Set the node of the client's graph that is shown instead of this one."""
        self.override_display_id = override_display_id

    def serialize(self) -> dict[str, object]:
        node: dict[str, Any] = {"class_type": self.class_type, "inputs": self.inputs}
        if self.override_display_id is not None:
            node["override_display_id"] = self.override_display_id
        return node


class GraphBuilder:
    """Builder of a graph with node ids of its own.

    Ids start with those of the running node and the call, and the number of graphs the call has built.

    The same node with the same inputs therefore gives the same ids, on which its cached results depend.
    """

    def __init__(self, prefix: str | None = None) -> None:
        self.prefix = self.alloc_prefix() if prefix is None else prefix
        self.nodes: dict[str, Node] = {}
        self.id_gen = 1

    @classmethod
    def alloc_prefix(
        cls, root: str | None = None, call_index: int | None = None, graph_index: int | None = None
    ) -> str:
        call = running_call()
        if call is not None:
            root = call.context.node_id if root is None else root
            call_index = call.context.list_index if call_index is None else call_index
            graph_index = call.num_graphs if graph_index is None else graph_index
            call.num_graphs += 1
        return f"{root or ''}.{call_index or 0}.{graph_index or 0}."

    def node(self, class_type: str, id: str | None = None, **kwargs: object) -> Node:
        """Return the node with this id, created if there is none."""
        if id is None:
            id = str(self.id_gen)
            self.id_gen += 1
        return self.nodes.setdefault(self.prefix + id, Node(self.prefix + id, class_type, kwargs))

    def lookup_node(self, id: str) -> Node | None:
        return self.nodes.get(self.prefix + id)

    def finalize(self) -> dict[str, object]:
        """Return the graph in the prompt's format."""
        return {node_id: node.serialize() for node_id, node in self.nodes.items()}

    def replace_node_output(self, node_id: str, index: int, new_value: object) -> None:
        """Replace an output by another value wherever it is used; None removes those inputs."""
        old = [self.prefix + node_id, index]
        for node in self.nodes.values():
            for key in [key for key, value in node.inputs.items() if is_link(value) and value == old]:
                node.set_input(key, new_value)

    def remove_node(self, id: str) -> None:
        del self.nodes[self.prefix + id]


def add_graph_prefix(
    graph: Mapping[str, Any], outputs: Sequence[Any], prefix: str
) -> tuple[dict[str, Any], tuple[Any, ...]]:
    """Return a graph and its outputs with `prefix` before every node id."""

    def moved(value: Any) -> Any:
        return [prefix + value[0], value[1]] if is_link(value) else value

    nodes = {
        prefix + node_id: {
            "class_type": node["class_type"],
            "inputs": {name: moved(value) for name, value in node.get("inputs", {}).items()},
        }
        for node_id, node in graph.items()
    }
    return nodes, tuple(moved(value) for value in outputs)
