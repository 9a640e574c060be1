"""Sources of linked inputs: through reroutes, bypassed nodes, Get and Set nodes, into and out of sub-graphs. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from worker.errors import Problem, RequestRejected
from worker.workflows.front_end_nodes import GETTERS, PRIMITIVE, REROUTES, SETTERS, VIRTUAL
from worker.workflows.page_graph import BYPASS, INPUT_NODE, OUTPUT_NODE, Link, PageNode
from worker.workflows.scopes import Scope

ANY: frozenset[str] = frozenset({"*", "", "0"})


@dataclass(frozen=True, slots=True)
class Source:
    """Output of an executed node."""

    node_id: str
    slot: int


@dataclass(frozen=True, slots=True)
class Constant:
    """Value of a primitive node or of a promoted widget."""

    value: object


@dataclass(frozen=True, slots=True)
class _Step:
    """Input or output on the way to a source. `type` is that of the input at the start."""

    scope: Scope
    node: PageNode
    slot: int
    type: str
    is_input: bool

    @property
    def key(self) -> tuple[int, str, int, str, bool]:
        return id(self.scope), self.node.id, self.slot, self.type, self.is_input


@dataclass
class LinkSources:
    """The sources found so far: every input on the way to a source has the same one."""

    _found: dict[tuple[int, str, int, str, bool], Source | Constant | None] = field(default_factory=dict)
    _setters: dict[int, dict[object, PageNode]] = field(default_factory=dict)
    _ends: dict[int, dict[int, Link]] = field(default_factory=dict)

    def of(self, scope: Scope, node: PageNode, slot: int) -> Source | Constant | None:
        """Return the source of an input; None if it is not linked. Raises RequestRejected for a loop of links."""
        step: _Step | Source | Constant | None = _Step(scope, node, slot, node.inputs[slot].type, True)
        passed: dict[tuple[int, str, int, str, bool], None] = {}
        while isinstance(step, _Step):
            if step.key in self._found:
                step = self._found[step.key]
                break
            if step.key in passed:
                raise _loop(scope, node, slot)
            passed[step.key] = None
            step = self._from_input(step) if step.is_input else self._from_output(step)
        self._found.update(dict.fromkeys(passed, step))
        return step

    def _from_input(self, step: _Step) -> _Step | Constant | None:
        scope, number = step.scope, step.node.inputs[step.slot].link
        link = None if number is None else scope.graph.links.get(number)
        if link is None:
            return None
        if link.origin_id == INPUT_NODE and scope.host is not None:
            return _from_host(step, scope, link.origin_slot)
        origin = scope.graph.nodes.get(link.origin_id)
        return None if origin is None else _Step(scope, origin, link.origin_slot, step.type, False)

    def _from_output(self, step: _Step) -> _Step | Source | Constant | None:
        scope, node = step.scope, step.node
        if scope.mode_of(node) == BYPASS:
            slot = bypass_slot(node, step.slot, step.type)
            return None if slot is None else _Step(scope, node, slot, node.inputs[slot].type, True)
        if node.id in scope.children:
            return self._from_sub_graph(step, scope.children[node.id])
        if node.type == PRIMITIVE:
            value = scope.settings.get((node.id, "value"), node.first_value)
            return None if value is None else Constant(value)
        if node.type in GETTERS:
            return self._from_setter(step)
        if node.type in REROUTES | SETTERS:
            return _Step(scope, node, 0, step.type, True) if node.inputs else None
        return None if node.type in VIRTUAL else Source(scope.id_of(node), step.slot)

    def _from_sub_graph(self, step: _Step, inner: Scope) -> _Step | None:
        ends = self._ends.get(id(inner))
        if ends is None:
            links = inner.graph.links.values()
            ends = {link.target_slot: link for link in links if link.target_id == OUTPUT_NODE}
            self._ends[id(inner)] = ends
        link = ends.get(step.slot)
        if link is None:
            return None
        if link.origin_id == INPUT_NODE:
            slot = _host_slot(inner, link.origin_slot)
            return None if slot is None else _Step(step.scope, step.node, slot, step.type, True)
        origin = inner.graph.nodes.get(link.origin_id)
        return None if origin is None else _Step(inner, origin, link.origin_slot, step.type, False)

    def _from_setter(self, step: _Step) -> _Step | None:
        name = step.node.first_value
        for scope in step.scope.around():
            if id(scope) not in self._setters:
                nodes = scope.graph.nodes.values()
                self._setters[id(scope)] = {str(node.first_value): node for node in nodes if node.type in SETTERS}
            setter = self._setters[id(scope)].get(str(name))
            if setter is not None:
                return _Step(scope, setter, 0, step.type, True) if setter.inputs else None
        return None


def _from_host(step: _Step, scope: Scope, slot: int) -> _Step | Constant | None:
    """Return the step out of a sub-graph, to the input of its host or to the value that the host gives."""
    host_slot = _host_slot(scope, slot)
    name = scope.graph.inputs[slot].name if 0 <= slot < len(scope.graph.inputs) else ""
    if host_slot is not None and scope.host is not None and scope.parent is not None:
        is_linked = scope.host.inputs[host_slot].link in scope.parent.graph.links
        if is_linked:
            return _Step(scope.parent, scope.host, host_slot, step.type, True)
    return Constant(scope.promoted[name]) if name in scope.promoted else None


def _host_slot(scope: Scope, slot: int) -> int | None:
    """Return the index of a sub-graph's input on its host: the host may have them in another order."""
    if scope.host is None or not 0 <= slot < len(scope.graph.inputs):
        return None
    name = scope.graph.inputs[slot].name
    return next((index for index, item in enumerate(scope.host.inputs) if item.name == name), None)


def bypass_slot(node: PageNode, slot: int, wanted: str) -> int | None:
    """Return the index of the input that a bypassed node passes on at an output, or None.

    That is the input of the same index if its type suits, else the first of the wanted type, else the first that suits.
    """
    inputs = node.inputs
    output = node.outputs[slot].type if slot < len(node.outputs) else wanted
    if wanted in ANY:
        return (slot if slot < len(inputs) else 0) if inputs else None
    suits = [suits_type(item.type, output) and suits_type(item.type, wanted) for item in inputs]
    if slot < len(inputs) and suits[slot]:
        return slot
    return (
        _first(item.type == wanted for item in inputs) if any(item.type == wanted for item in inputs) else _first(suits)
    )


def suits_type(one: str, other: str) -> bool:
    """Return True if a link may join these types, each a name, `*`, or names separated by commas."""
    if one in ANY or other in ANY or one.lower() == other.lower():
        return True
    return not {part.strip().lower() for part in one.split(",")}.isdisjoint(
        part.strip().lower() for part in other.split(",")
    )


def _first(tests: Iterable[bool]) -> int | None:
    return next((index for index, test in enumerate(tests) if test), None)


def _loop(scope: Scope, node: PageNode, slot: int) -> RequestRejected:
    name = node.inputs[slot].name
    problem = Problem("is linked to itself", name, scope.id_of(node), node.type, "dependency_cycle")
    return RequestRejected([problem])
