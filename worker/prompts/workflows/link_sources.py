"""Sources of linked inputs: through reroutes, bypassed nodes, Get and Set nodes, into and out of sub-graphs. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from darkroom.worker.errors import Problem, RequestRejected
from darkroom.worker.prompts.workflows.expansion import Expansion
from darkroom.worker.prompts.workflows.front_end_nodes import GETTERS, PRIMITIVE, REROUTES, SETTERS, VIRTUAL
from darkroom.worker.prompts.workflows.page_graph import BYPASS, INPUT_NODE, PageNode, Slot
from darkroom.worker.prompts.workflows.scopes import Scope

ANY: frozenset[str] = frozenset({"*", "", "0"})
LENGTH_OF_TEST: Final = 64  # characters of types whose comparison counts as one more


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
    """Input or output on the way to a source."""

    scope: Scope
    node: PageNode
    slot: int
    is_input: bool

    @property
    def key(self) -> _Key:
        return id(self.scope), self.node.id, self.slot, self.is_input


_Key = tuple[int, str, int, bool]


@dataclass(frozen=True, slots=True)
class _Bypassed:
    """Output of a bypassed node: where the way goes on depends on the type of the input at its start."""

    step: _Step


_End = Source | Constant | _Bypassed | None


@dataclass
class LinkSources:
    """The sources found so far: every input on the way to a source has the same one.

    The ways between bypassed nodes are the same for inputs of all types, so each link is followed once.
    """

    expansion: Expansion = field(default_factory=Expansion)
    _ends: dict[_Key, _End] = field(default_factory=dict)  # the source or the next bypassed node, by step
    _found: dict[tuple[_Key, str], Source | Constant | None] = field(default_factory=dict)  # by bypassed node and type
    _setters: dict[int, dict[object, PageNode]] = field(default_factory=dict)

    def of(self, scope: Scope, node: PageNode, slot: int) -> Source | Constant | None:
        """Return the source of an input; None if it is not linked. Raises RequestRejected for a loop of links."""
        start, wanted = _Step(scope, node, slot, True), node.inputs[slot].type
        end = self._end_of(start, start)
        passed: dict[tuple[_Key, str], None] = {}
        found: Source | Constant | None = None
        while isinstance(end, _Bypassed):
            step, key = end.step, (end.step.key, wanted)
            if key in self._found:
                found = self._found[key]
                break
            if key in passed:
                raise _loop(start)
            passed[key] = None
            index = bypass_slot(step.node, step.slot, wanted, self.expansion.add_type_tests)
            if index is None:
                break
            wanted = step.node.inputs[index].type
            end = self._end_of(_Step(step.scope, step.node, index, True), start)
        else:
            found = end
        self._found.update(dict.fromkeys(passed, found))
        return found

    def _end_of(self, step: _Step, start: _Step) -> _End:
        """Return the source of a step, or the bypassed node before it."""
        current: _Step | _End = step
        passed: dict[_Key, None] = {}
        while isinstance(current, _Step):
            if current.key in self._ends:
                current = self._ends[current.key]
                break
            if current.key in passed:
                raise _loop(start)
            passed[current.key] = None
            current = self._from_input(current) if current.is_input else self._from_output(current)
        self._ends.update(dict.fromkeys(passed, current))
        return current

    def _from_input(self, step: _Step) -> _Step | Constant | None:
        scope, number = step.scope, step.node.inputs[step.slot].link
        link = None if number is None else scope.graph.links.get(number)
        if link is None:
            return None
        if link.origin_id == INPUT_NODE and scope.host is not None:
            return _from_host(scope, link.origin_slot)
        origin = scope.graph.nodes.get(link.origin_id)
        return None if origin is None else _Step(scope, origin, link.origin_slot, False)

    def _from_output(self, step: _Step) -> _Step | _End:
        scope, node = step.scope, step.node
        if scope.mode_of(node) == BYPASS:
            return _Bypassed(step)
        if node.id in scope.children:
            return _from_sub_graph(step, scope.children[node.id])
        if node.type == PRIMITIVE:
            value = scope.settings.get((node.id, "value"), node.first_value)
            return None if value is None else Constant(value)
        if node.type in GETTERS:
            return self._from_setter(step)
        if node.type in REROUTES | SETTERS:
            return _Step(scope, node, 0, True) if node.inputs else None
        return None if node.type in VIRTUAL else Source(scope.id_of(node), step.slot)

    def _from_setter(self, step: _Step) -> _Step | None:
        name = step.node.first_value
        for scope in step.scope.around():
            if id(scope) not in self._setters:
                nodes = scope.graph.nodes.values()
                self._setters[id(scope)] = {str(node.first_value): node for node in nodes if node.type in SETTERS}
            setter = self._setters[id(scope)].get(str(name))
            if setter is not None:
                return _Step(scope, setter, 0, True) if setter.inputs else None
        return None


def _from_sub_graph(step: _Step, inner: Scope) -> _Step | None:
    """Return the step into a sub-graph, or past it to an input of its host."""
    link = inner.graph.links_of_outputs.get(step.slot)
    if link is None:
        return None
    if link.origin_id == INPUT_NODE:
        slot = _host_slot(inner, link.origin_slot)
        return None if slot is None else _Step(step.scope, step.node, slot, True)
    origin = inner.graph.nodes.get(link.origin_id)
    return None if origin is None else _Step(inner, origin, link.origin_slot, False)


def _from_host(scope: Scope, slot: int) -> _Step | Constant | None:
    """Return the step out of a sub-graph, to the input of its host or to the value that the host gives."""
    host_slot = _host_slot(scope, slot)
    name = scope.graph.inputs[slot].name if 0 <= slot < len(scope.graph.inputs) else ""
    if host_slot is not None and scope.host is not None and scope.parent is not None:
        is_linked = scope.host.inputs[host_slot].link in scope.parent.graph.links
        if is_linked:
            return _Step(scope.parent, scope.host, host_slot, True)
    return Constant(scope.promoted[name]) if name in scope.promoted else None


def _host_slot(scope: Scope, slot: int) -> int | None:
    """Return the index of a sub-graph's input on its host: the host may have them in another order."""
    if scope.host is None or not 0 <= slot < len(scope.graph.inputs):
        return None
    return scope.host_slots.get(scope.graph.inputs[slot].name)


def bypass_slot(
    node: PageNode, slot: int, wanted: str, add_tests: Callable[[int], None] = lambda num_tests: None
) -> int | None:
    """Return the index of the input that a bypassed node passes on at an output, or None.

    That is the input of the same index if its type suits, else the first of the wanted type, else the first that suits.
    `add_tests` is called with the number of comparisons before they are made.
    """
    inputs = node.inputs
    output = node.outputs[slot].type if slot < len(node.outputs) else wanted
    if wanted in ANY:
        return (slot if slot < len(inputs) else 0) if inputs else None

    def suits(item: Slot) -> bool:
        return suits_type(item.type, output) and suits_type(item.type, wanted)

    length = len(output) + len(wanted)
    if slot < len(inputs):
        add_tests(1 + (len(inputs[slot].type) + length) // LENGTH_OF_TEST)
        if suits(inputs[slot]):
            return slot
    add_tests(sum(1 + (len(item.type) + length) // LENGTH_OF_TEST for item in inputs))
    same = _first(item.type == wanted for item in inputs)
    return _first(map(suits, inputs)) if same is None else same


def suits_type(one: str, other: str) -> bool:
    """Return True if a link may join these types, each a name, `*`, or names separated by commas."""
    if one in ANY or other in ANY or one.lower() == other.lower():
        return True
    return not {part.strip().lower() for part in one.split(",")}.isdisjoint(
        part.strip().lower() for part in other.split(",")
    )


def _first(tests: Iterable[bool]) -> int | None:
    return next((index for index, test in enumerate(tests) if test), None)


def _loop(start: _Step) -> RequestRejected:
    name = start.node.inputs[start.slot].name
    problem = Problem("is linked to itself", name, start.scope.id_of(start.node), start.node.type, "dependency_cycle")
    return RequestRejected([problem])
