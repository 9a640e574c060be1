"""Unfolding of sub-graphs: one scope for the page and one for each use of a sub-graph in it. Pure.

A node in a sub-graph is executed under the ids of the nodes around it and its own, joined by colons, as in ComfyUI. A
group node is read as a sub-graph (`group_nodes.py`). Each use may set widgets of the nodes within.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from worker.errors import Problem, RequestRejected
from worker.json_values import JsonObject
from worker.workflows.group_nodes import graph_of_group, group_name
from worker.workflows.page_graph import (
    BYPASS,
    INPUT_NODE,
    NEVER,
    PageGraph,
    PageNode,
    definitions_in,
    groups_in,
    read_graph,
)
from worker.workflows.widgets import has_control, read_class

MAX_DEPTH: Final = 50
OUTER: Final = "-1"  # in a list of promoted widgets: the widget of the sub-graph's own input


@dataclass
class Scope:
    """Graph in its place: `path` holds the ids of the nodes around it, `host` the node that stands for it.

    `promoted` are the values of the host's inputs, `settings` those of widgets within, by node id and name.
    """

    graph: PageGraph
    path: tuple[str, ...] = ()
    host: PageNode | None = None
    parent: Scope | None = None
    promoted: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[tuple[str, str], Any] = field(default_factory=dict)
    children: dict[str, Scope] = field(default_factory=dict)
    mode: int = 0

    def id_of(self, node: PageNode) -> str:
        return ":".join((*self.path, node.id))

    def mode_of(self, node: PageNode) -> int:
        """Return the mode of a node, or that of the sub-graph around it if it does not run at all."""
        return self.mode if self.mode in (NEVER, BYPASS) else node.mode

    def around(self) -> Iterator[Scope]:
        """Yield this scope and those around it, the innermost first."""
        scope: Scope | None = self
        while scope is not None:
            yield scope
            scope = scope.parent

    def all_nodes(self) -> Iterator[tuple[Scope, PageNode]]:
        """Yield every node of this scope and of those within, each with its scope."""
        for node in self.graph.nodes.values():
            yield self, node
            if node.id in self.children:
                yield from self.children[node.id].all_nodes()


class Unfolding:
    """The scopes of one file. `max_nodes` bounds their nodes together; 0: no limit."""

    def __init__(self, document: JsonObject, object_info: JsonObject, max_nodes: int = 0) -> None:
        self._document = document
        self._definitions = definitions_in(document)
        self._groups = groups_in(document)
        self._object_info = object_info
        self._max_nodes = max_nodes
        self._num_nodes = 0
        self._graphs: dict[str, PageGraph] = {}

    def unfold(self) -> Scope:
        """Return the scope of the page, with those of its sub-graphs. Raises RequestRejected."""
        page = Scope(read_graph(self._document))
        self._fill(page, ())
        return page

    def _fill(self, scope: Scope, around: tuple[str, ...]) -> None:
        """Add the scopes of a scope's sub-graphs. `around` are the types of the nodes around it."""
        self._num_nodes += len(scope.graph.nodes)
        if self._max_nodes and self._num_nodes > self._max_nodes:
            raise _too_many_nodes(self._num_nodes, self._max_nodes)
        for node in scope.graph.nodes.values():
            inner = self._graph_of(node)
            if inner is None:
                continue
            if node.type in around or len(around) >= MAX_DEPTH:
                raise _contains_itself(scope, node)
            graph, host = inner
            promoted, settings = self._values_of(host, graph, scope)
            child = Scope(graph, (*scope.path, node.id), host, scope, promoted, settings, mode=scope.mode_of(node))
            scope.children[node.id] = child
            self._fill(child, (*around, node.type))

    def _graph_of(self, node: PageNode) -> tuple[PageGraph, PageNode] | None:
        """Return the graph that a node stands for, and the node with the slots of that graph; None for any other."""
        name = group_name(node.type)
        if name in self._groups:
            return graph_of_group(node, self._groups[name], lambda kind: read_class(kind, self._object_info))
        if node.type not in self._definitions:
            return None
        if node.type not in self._graphs:
            self._graphs[node.type] = read_graph(self._definitions[node.type])
        return self._graphs[node.type], node

    def _values_of(
        self, host: PageNode, graph: PageGraph, scope: Scope
    ) -> tuple[dict[str, Any], dict[tuple[str, str], Any]]:
        """Return the values that a use of a sub-graph gives to its inputs, and to widgets within it."""
        promoted: dict[str, Any] = {}
        settings: dict[tuple[str, str], Any] = {}
        values = host.values if not isinstance(host.values, Mapping) else ()
        entries = list(_entries(host.properties.get("proxyWidgets")))
        if isinstance(host.values, Mapping):
            promoted.update(host.values)
        elif entries:
            own = [entry for entry in entries if entry[0] == OUTER]
            named = own if len(values) == len(own) else entries
            for (node_id, name), value in zip(named, values, strict=False):
                if value is None:
                    continue
                if node_id == OUTER:
                    promoted[name] = value
                else:
                    settings[node_id, name] = value
        else:
            promoted.update(self._in_order(host, graph, list(values)))
        for slot in host.inputs:  # a use within another sub-graph, whose own use may set its inputs
            if (host.id, slot.name) in scope.settings:
                promoted[slot.name] = scope.settings[host.id, slot.name]
        return promoted, settings

    def _in_order(self, host: PageNode, graph: PageGraph, values: list[Any]) -> Iterator[tuple[str, Any]]:
        """Yield the values of promoted inputs, which a file without their names has in their order."""
        names = [slot.name for slot in host.inputs if slot.widget is not None]
        has_controls = len(values) > len(names)
        position = 0
        for name in names:
            if position < len(values) and values[position] is not None:
                yield name, values[position]
            position += 2 if has_controls and self._has_control(name, graph) else 1

    def _has_control(self, name: str, graph: PageGraph) -> bool:
        """Return True if the widget that an input stands for has a control of its next value."""
        index = next((index for index, slot in enumerate(graph.inputs) if slot.name == name), -1)
        for link in graph.links.values():
            node = graph.nodes.get(link.target_id)
            if (link.origin_id, link.origin_slot) != (INPUT_NODE, index) or node is None:
                continue
            spec = read_class(node.type, self._object_info)
            slot = node.inputs[link.target_slot].name if link.target_slot < len(node.inputs) else ""
            return spec is not None and any(item.name == slot and has_control(item) for item in spec.inputs)
        return False


def _entries(value: object) -> Iterator[tuple[str, str]]:
    for item in value if isinstance(value, list) else ():
        if isinstance(item, list) and len(item) >= 2:
            yield str(item[0]), str(item[1])


def _too_many_nodes(found: int, allowed: int) -> RequestRejected:
    message = f"has too many nodes with its sub-graphs unfolded; got {found}, expected at most {allowed}"
    problem = Problem(message, field="input.workflow_json", type="max_nodes", allowed={"maximum": allowed})
    return RequestRejected([problem])


def _contains_itself(scope: Scope, node: PageNode) -> RequestRejected:
    message = f"the sub-graph of node {scope.id_of(node)} contains itself or is nested too deeply"
    allowed = {"maximum_depth": MAX_DEPTH}
    problem = Problem(message, "input.workflow_json", scope.id_of(node), node.type, "nested_subgraph", allowed)
    return RequestRejected([problem])
