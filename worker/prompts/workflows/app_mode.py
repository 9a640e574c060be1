"""App mode of a page: the inputs and outputs that its author chose for those who only run it. Pure.

The page saves them as `[node id, widget name]` and as node ids. A widget of a sub-graph's host stands for inputs of the
nodes within, under the ids that these have in the prompt.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from darkroom.worker.json.values import JsonObject, object_at
from darkroom.worker.prompts.workflows.expansion import Expansion
from darkroom.worker.prompts.workflows.page_graph import PageNode, is_page_format
from darkroom.worker.prompts.workflows.scopes import Scope, Unfolding
from darkroom.worker.storage.stored_workflow import Place


@dataclass(frozen=True, slots=True)
class AppMode:
    """Chosen inputs by name, each with the inputs of the prompt that it sets, and the ids of chosen outputs."""

    inputs: Mapping[str, tuple[Place, ...]] = field(default_factory=dict)
    outputs: tuple[str, ...] = ()


def read_app_mode(document: JsonObject, object_info: JsonObject, max_nodes: int = 0) -> AppMode:
    """Return the app mode of a page; empty for one without it, and for a prompt. Raises RequestRejected."""
    chosen = object_at(document, "extra", "linearData")
    if not chosen or not is_page_format(document):
        return AppMode()
    expansion = Expansion(max_nodes)
    reading = _Reading(expansion)
    page = Unfolding(document, object_info, expansion).unfold()
    inputs: dict[str, list[Place]] = {}
    for node_id, name in dict.fromkeys(_pairs(chosen.get("inputs"))):
        for place in reading.places(page, node_id, name, set()):
            inputs.setdefault(name, []).append(place)
    outputs = chosen.get("outputs")
    ids = tuple(str(node_id) for node_id in outputs) if isinstance(outputs, list) else ()
    found = {name: tuple(places) for name, places in inputs.items()}
    return AppMode(found, tuple(node_id for node_id in ids if node_id in page.graph.nodes))


def _pairs(value: object) -> Iterator[tuple[str, str]]:
    for item in value if isinstance(value, list) else ():
        if isinstance(item, list) and len(item) >= 2 and isinstance(item[1], str):
            yield str(item[0]), item[1]


class _Reading:
    """Places of chosen inputs; what they are together is counted, since each may stand for many."""

    def __init__(self, expansion: Expansion) -> None:
        self._expansion = expansion
        self._shown: dict[int, dict[str, list[str]]] = {}  # by node: ids of the inner nodes by the name of a widget

    def places(self, scope: Scope, node_id: str, name: str, seen: set[tuple[int, str, str]]) -> Iterator[Place]:
        """Yield the inputs of the prompt that a widget of a node stands for; `seen` are the widgets looked at before.

        Raises RequestRejected for too many.
        """
        node, child = scope.graph.nodes.get(node_id), scope.children.get(node_id)
        if node is None or (id(scope), node_id, name) in seen:
            return
        seen.add((id(scope), node_id, name))
        self._expansion.add_elements(1)
        if child is None:
            yield Place(scope.id_of(node), name)
            return
        for slot in child.graph.inputs_called.get(name, ()):
            links = child.graph.links_of_inputs.get(slot, ())
            self._expansion.add_elements(len(links))
            for link in links:
                target = child.graph.nodes[link.target_id]
                if link.target_slot < len(target.inputs):
                    yield from self.places(child, target.id, target.inputs[link.target_slot].name, seen)
        inner_ids = self._shown_by(node).get(name, ())
        self._expansion.add_elements(len(inner_ids))
        for inner_id in inner_ids:
            yield from self.places(child, inner_id, name, seen)

    def _shown_by(self, node: PageNode) -> dict[str, list[str]]:
        if id(node) not in self._shown:
            found = self._shown[id(node)] = {}
            for inner_id, name in _pairs(node.proxy_widgets):
                found.setdefault(name, []).append(inner_id)
        return self._shown[id(node)]
