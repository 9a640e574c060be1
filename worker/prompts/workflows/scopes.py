"""Unfolding of sub-graphs: one scope for the page and one for each use of a sub-graph in it. Pure.

A node in a sub-graph is executed under the ids of the nodes around it and its own, joined by colons, as in ComfyUI. A
group node is read as a sub-graph (`group_nodes.py`). Each use may set widgets of the nodes within.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from darkroom.contract.graph.spec import NodeSpec
from darkroom.worker.errors import Problem, RequestRejected
from darkroom.worker.json.values import JsonObject
from darkroom.worker.prompts.workflows.declarations import Declarations
from darkroom.worker.prompts.workflows.expansion import Expansion
from darkroom.worker.prompts.workflows.group_nodes import GroupDefinition, graph_of_group, group_name
from darkroom.worker.prompts.workflows.page_graph import (
    BYPASS,
    INPUT_NODE,
    NEVER,
    PageGraph,
    PageNode,
    Slot,
    definitions_in,
    groups_in,
    read_graph,
)
from darkroom.worker.prompts.workflows.subgraph_values import (
    AmbiguousValues,
    HostValues,
    PromotedInputs,
    read_host_values,
)
from darkroom.worker.prompts.workflows.widgets import ScriptedWidgets, read_values

MAX_DEPTH: Final = 50
MAX_ID_LENGTH: Final = 2000  # of a node with the ids around it


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
        return self.id_start + node.id

    @cached_property
    def id_start(self) -> str:
        """Beginning of the ids of this scope's nodes."""
        return "".join(f"{node_id}:" for node_id in self.path)

    @cached_property
    def host_slots(self) -> Mapping[str, int]:
        """Index of each input of the host by its name, of several the first: the host may have another order."""
        slots = () if self.host is None else self.host.inputs
        return {slot.name: index for index, slot in reversed(list(enumerate(slots)))}

    def mode_of(self, node: PageNode) -> int:
        """Return the mode of a node, or that of the sub-graph around it if it does not run at all."""
        return self.mode if self.mode in (NEVER, BYPASS) else node.mode

    def is_promoted(self, slot: Slot) -> bool:
        """Return True for an input of a node that is one of the sub-graph's own inputs."""
        link = None if slot.link is None or self.host is None else self.graph.links.get(slot.link)
        return link is not None and link.origin_id == INPUT_NODE

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
    """The scopes of one file. `expansion` bounds their size together."""

    def __init__(self, document: JsonObject, object_info: JsonObject, expansion: Expansion | None = None) -> None:
        self._document = document
        self._definitions = definitions_in(document)
        self._groups = groups_in(document)
        self._declarations = Declarations(object_info)
        self._expansion = expansion or Expansion()
        self._graphs: dict[str, PageGraph] = {}
        self._read_groups: dict[str, GroupDefinition] = {}
        self._promoted: dict[str, PromotedInputs] = {}
        self._node_values: dict[int, JsonObject] = {}
        self._problems: list[Problem] = []

    def unfold(self) -> Scope:
        """Return the scope of the page, with those of its sub-graphs. Raises RequestRejected."""
        page = Scope(read_graph(self._document))
        self._fill(page, ())
        if self._problems:
            raise RequestRejected(self._problems)
        return page

    def _fill(self, scope: Scope, around: tuple[str, ...]) -> None:
        """Add the scopes of a scope's sub-graphs. `around` are the types of the nodes around it."""
        self._expansion.add_nodes(len(scope.graph.nodes))
        self._expansion.add_elements(scope.graph.num_elements)
        for node in scope.graph.nodes.values():
            if len(scope.id_start) + len(node.id) > MAX_ID_LENGTH:
                raise _id_too_long(scope, node)
            inner = self._graph_of(node)
            if inner is None:
                continue
            if node.type in around or len(around) >= MAX_DEPTH:
                raise _contains_itself(scope, node)
            graph, host = inner
            values = self._values_of(host, graph, scope)
            around_node = (*scope.path, node.id)
            child = Scope(graph, around_node, host, scope, values.promoted, values.settings, mode=scope.mode_of(node))
            scope.children[node.id] = child
            self._fill(child, (*around, node.type))
            if child.mode not in (NEVER, BYPASS):
                child.promoted = {**self._values_within(child), **child.promoted}

    def _graph_of(self, node: PageNode) -> tuple[PageGraph, PageNode] | None:
        """Return the graph that a node stands for, and the node with the slots of that graph; None for any other."""
        name = group_name(node.type)
        if name in self._groups:
            if name not in self._read_groups:
                self._read_groups[name] = GroupDefinition(self._groups[name])
            group = self._read_groups[name]
            self._expansion.add_elements(group.num_elements + len(node.values))
            return graph_of_group(node, group, self._declarations.find, self._expansion.add_new_bytes)
        if node.type not in self._definitions:
            return None
        return self._graph_of_definition(node.type), node

    def _graph_of_definition(self, class_type: str) -> PageGraph:
        if class_type not in self._graphs:
            self._graphs[class_type] = read_graph(self._definitions[class_type])
        return self._graphs[class_type]

    def _values_of(self, host: PageNode, graph: PageGraph, scope: Scope) -> HostValues:
        """Return the values that a use of a sub-graph gives, with what its own host sets of them."""
        if scope.mode_of(host) in (NEVER, BYPASS):
            return HostValues()
        promoted = self._promoted_of(host.type, graph)
        try:
            found = read_host_values(host, promoted)
        except AmbiguousValues as ambiguous:
            self._problems.append(ambiguous.as_problem(scope.id_of(host), host.type))
            return HostValues()
        own = (
            (name, scope.settings.get((host.id, name))) for name in dict.fromkeys(slot.name for slot in graph.inputs)
        )
        given = {name: value for name, value in own if value is not None} if scope.settings else {}
        return HostValues({**found.promoted, **given}, found.settings)

    def _values_within(self, child: Scope) -> dict[str, Any]:
        """Return the values of inputs that a use does not set: as on the page, each is that of its first widget."""
        assert child.host is not None
        shared = self._promoted_of(child.host.type, child.graph).shared()
        found = {
            name: self._value_within(child, node, widget) for name, node, widget in shared if name not in child.promoted
        }
        return {name: value for name, value in found.items() if value is not None}

    def _value_within(self, scope: Scope, node: PageNode, name: str) -> object:
        """Return the value of a node's widget; None without one."""
        inner = scope.children.get(node.id)
        if inner is not None and inner.host is not None:
            if name in inner.promoted:
                return inner.promoted[name]
            target = self._promoted_of(inner.host.type, inner.graph).target_of(name)
            return None if target is None else self._value_within(inner, *target)
        if (node.id, name) in scope.settings:
            return scope.settings[node.id, name]
        key = id(node)
        if key not in self._node_values:
            spec = self._declarations.find(node.type)
            self._node_values[key] = {} if spec is None else _values_or_none(spec, node)
        return self._node_values[key].get(name)

    def _promoted_of(self, class_type: str, graph: PageGraph) -> PromotedInputs:
        """Return the inputs of a sub-graph that are widgets of its uses, read once for each definition."""
        if class_type not in self._promoted:
            found = PromotedInputs(graph, self._declarations.find, self._nested)
            if class_type not in self._definitions:  # a group node's graph is that of one use
                return found
            self._promoted[class_type] = found
        return self._promoted[class_type]

    def _nested(self, class_type: str) -> PromotedInputs | None:
        if class_type not in self._definitions:
            return None
        return self._promoted_of(class_type, self._graph_of_definition(class_type))


def _values_or_none(spec: NodeSpec, node: PageNode) -> JsonObject:
    """Return the values of a node's widgets; none where only a script reads them, which the conversion then refuses."""
    try:
        return read_values(spec, node)
    except ScriptedWidgets:
        return {}


def _id_too_long(scope: Scope, node: PageNode) -> RequestRejected:
    message = f"the id of a node with those of the sub-graphs around it is too long; expected at most {MAX_ID_LENGTH}"
    shown = scope.id_of(node)[:100]
    problem = Problem(message, "input.workflow_json", shown, None, "too_long", {"maximum": MAX_ID_LENGTH})
    return RequestRejected([problem])


def _contains_itself(scope: Scope, node: PageNode) -> RequestRejected:
    message = f"the sub-graph of node {scope.id_of(node)} contains itself or is nested too deeply"
    allowed = {"maximum_depth": MAX_DEPTH}
    problem = Problem(message, "input.workflow_json", scope.id_of(node), node.type, "nested_subgraph", allowed)
    return RequestRejected([problem])
