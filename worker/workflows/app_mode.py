"""App mode of a page: the inputs and outputs that its author chose for those who only run it. Pure.

The page saves them as `[node id, widget name]` and as node ids. A widget of a sub-graph's host stands for inputs of the
nodes within, under the ids that these have in the prompt.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from worker.json_values import JsonObject, object_at
from worker.workflows.overrides import Place
from worker.workflows.page_graph import INPUT_NODE, is_page_format
from worker.workflows.scopes import Scope, Unfolding


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
    page = Unfolding(document, object_info, max_nodes).unfold()
    inputs: dict[str, tuple[Place, ...]] = {}
    for node_id, name in _pairs(chosen.get("inputs")):
        places = tuple(_places(page, node_id, name, set()))
        if places:
            inputs[name] = (*inputs.get(name, ()), *places)
    outputs = chosen.get("outputs")
    ids = tuple(str(node_id) for node_id in outputs) if isinstance(outputs, list) else ()
    return AppMode(inputs, tuple(node_id for node_id in ids if node_id in page.graph.nodes))


def _pairs(value: object) -> Iterator[tuple[str, str]]:
    for item in value if isinstance(value, list) else ():
        if isinstance(item, list) and len(item) >= 2 and isinstance(item[1], str):
            yield str(item[0]), item[1]


def _places(scope: Scope, node_id: str, name: str, seen: set[tuple[str, ...]]) -> Iterator[Place]:
    """Yield the inputs of the prompt that a widget of a node stands for; `seen` are the widgets looked at before."""
    node, child = scope.graph.nodes.get(node_id), scope.children.get(node_id)
    if node is None or (*scope.path, node_id, name) in seen:
        return
    seen.add((*scope.path, node_id, name))
    if child is None:
        yield Place(scope.id_of(node), name)
        return
    slots = {index for index, slot in enumerate(child.graph.inputs) if name in (slot.name, slot.label)}
    for link in child.graph.links.values():
        target = child.graph.nodes.get(link.target_id)
        is_named = link.origin_id == INPUT_NODE and link.origin_slot in slots
        if is_named and target is not None and link.target_slot < len(target.inputs):
            yield from _places(child, target.id, target.inputs[link.target_slot].name, seen)
    for inner_id, inner_name in _pairs(node.properties.get("proxyWidgets")):
        if inner_name == name:
            yield from _places(child, inner_id, inner_name, seen)
