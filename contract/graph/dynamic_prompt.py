"""The graph of one run: the client's prompt and the nodes that nodes expanded into.

Every look-up takes constant time, however deep expansions nest. Node classes that ask for the hidden input `DYNPROMPT`
get this object, so its public methods have the names they know from ComfyUI.
"""

from __future__ import annotations

from collections.abc import Mapping

from darkroom.contract.errors import RunError
from darkroom.contract.graph.node_ref import NodeRef
from darkroom.contract.graph.prompt import Node, parse_prompt


class DuplicateNodeError(RunError):
    """An expansion brought a node id that the graph already has."""

    code = "duplicate_node"


class NodeNotFoundError(RunError):
    """A link or a request names a node that the graph does not have."""

    code = "node_not_found"


class DynamicPrompt:
    """The nodes of `running`, what of the client's `prompt` may run; all of it where that is None."""

    def __init__(self, prompt: Mapping[str, object], running: Mapping[str, object] | None = None) -> None:
        self._original = prompt
        self._nodes = parse_prompt(prompt if running is None else running)
        self._parents: dict[str, str] = {}
        self._real: dict[str, str] = {}
        self._display: dict[str, str] = {}

    def find(self, node_id: str) -> Node | None:
        return self._nodes.get(node_id)

    def node(self, node_id: str) -> Node:
        """Return the node of that id. Raises NodeNotFoundError for an unknown one."""
        node = self._nodes.get(node_id)
        if node is None:
            raise NodeNotFoundError(f"Node {node_id} not found")
        return node

    def ref(self, node_id: str) -> NodeRef:
        return NodeRef(
            node_id, self.get_display_node_id(node_id), self._parents.get(node_id), self.get_real_node_id(node_id)
        )

    def expand(self, parent_id: str, graph: Mapping[str, object]) -> list[Node]:
        """Add the nodes that one expanded into.

        `override_display_id` of a node is the one that it is shown at, `override_real_id` the one that its errors name.

        Raises DuplicateNodeError when an id is taken, `PromptRejected` when the graph is no prompt.
        """
        added = parse_prompt(graph)
        for node_id in added:
            if node_id in self._nodes:
                raise DuplicateNodeError(
                    f"Attempt to add duplicate node {node_id}. Ensure node ids are unique and deterministic or use "
                    "graph_utils.GraphBuilder."
                )
        real_parent = self.get_real_node_id(parent_id)
        for node_id, node in added.items():
            shown = str(node.raw.get("override_display_id", parent_id))
            self._nodes[node_id] = node
            self._parents[node_id] = parent_id
            real = node.raw.get("override_real_id")
            self._real[node_id] = (
                self.get_real_node_id(real) if isinstance(real, str) and real in self._nodes else real_parent
            )
            self._display[node_id] = self._display.get(shown, shown)
        return list(added.values())

    @property
    def num_nodes(self) -> int:
        return len(self._nodes)

    # --- as ComfyUI names them ---

    def get_node(self, node_id: str) -> Mapping[str, object]:
        return self.node(node_id).raw

    def has_node(self, node_id: str) -> bool:
        return node_id in self._nodes

    def all_node_ids(self) -> set[str]:
        return set(self._nodes)

    def get_original_prompt(self) -> Mapping[str, object]:
        return self._original

    def get_parent_node_id(self, node_id: str) -> str | None:
        return self._parents.get(node_id)

    def get_real_node_id(self, node_id: str) -> str:
        """Return the node of the client's prompt from which this one was expanded."""
        return self._real.get(node_id, node_id)

    def get_display_node_id(self, node_id: str) -> str:
        return self._display.get(node_id, node_id)
