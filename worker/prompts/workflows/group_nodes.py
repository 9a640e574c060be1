"""Group nodes, the older form of sub-graphs (`extra.groupNodes` in a file), read as sub-graphs. Pure.

The slots and widgets of a group node are those of its nodes, in their order, but for slots that are linked within the
group and those that its configuration hides. A name that is taken is preceded by the title of its node.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from darkroom.contract.graph.spec import NodeSpec
from darkroom.worker.json.values import JsonObject, object_at
from darkroom.worker.prompts.workflows.front_end_nodes import PRIMITIVE, REROUTES
from darkroom.worker.prompts.workflows.page_graph import (
    INPUT_NODE,
    OUTPUT_NODE,
    Link,
    PageGraph,
    PageNode,
    Slot,
    read_node,
)
from darkroom.worker.prompts.workflows.widgets import has_control, is_widget

PREFIXES: Final = ("workflow>", "workflow/")
ANY: Final = "*"
MAX_TITLE_LENGTH: Final = 300  # of the title in the names of a node's inputs
FindSpec = Callable[[str], NodeSpec | None]


def group_name(class_type: str) -> str:
    """Return the name of the group that a type of node stands for; empty for any other type."""
    prefix = next((prefix for prefix in PREFIXES if class_type.startswith(prefix)), "")
    return class_type.removeprefix(prefix) if prefix else ""


class GroupDefinition:
    """A group as a file defines it, read once for all of its uses."""

    def __init__(self, definition: JsonObject) -> None:
        found = definition.get("nodes")
        items = [item for item in found if isinstance(item, Mapping)] if isinstance(found, list) else []
        self.nodes = [read_node(item, str(index)) for index, item in enumerate(items)]
        self.config = object_at(definition, "config")
        self.links: list[Link] = []
        self.linked: dict[str, dict[int, int]] = {}  # by inner node: the link of each of its inputs
        self.used: set[tuple[str, int]] = set()  # inner nodes and outputs that links begin at
        self._types: dict[str, str] = {}  # by inner node: the first type of what its links lead to and name
        named: list[tuple[str, str]] = []
        links = definition.get("links")
        for item in links if isinstance(links, list) else ():
            if isinstance(item, list):
                self._read_link(item)
                if len(item) > 5:
                    named += [(str(item[0]), str(item[5])), (str(item[2]), str(item[5]))]
        for link in self.links:
            self._name_type(link.origin_id, self._type_of_input(link))
        for node_id, kind in named:
            self._name_type(node_id, kind)
        external = definition.get("external")
        places = (_external_place(item) for item in (external if isinstance(external, list) else ()))
        self.external = {place for place in places if place is not None}

    @property
    def num_elements(self) -> int:
        """Number of nodes, links and slots: what each use of the group costs."""
        of_nodes = sum(1 + len(node.inputs) + len(node.outputs) + len(node.values) for node in self.nodes)
        return of_nodes + len(self.links)

    def type_through(self, node: PageNode) -> str:
        """Return the type of what passes through a reroute: of the input that takes it, else as its links name it."""
        return self._types.get(node.id, ANY)

    def _name_type(self, node_id: str, kind: str) -> None:
        if kind != ANY:
            self._types.setdefault(node_id, kind)

    def _read_link(self, item: list[Any]) -> None:
        if len(item) < 4 or not all(isinstance(part, int) and part >= 0 for part in item[:4]):
            return
        link = Link(len(self.links), str(item[0]), item[1], str(item[2]), item[3])
        self.links.append(link)
        self.linked.setdefault(link.target_id, {})[link.target_slot] = link.id
        self.used.add((link.origin_id, link.origin_slot))

    def _type_of_input(self, link: Link) -> str:
        """Return the type of the inner input that a link leads to."""
        node = self.nodes[int(link.target_id)] if int(link.target_id) < len(self.nodes) else None
        is_there = node is not None and link.target_slot < len(node.inputs)
        return node.inputs[link.target_slot].type if node is not None and is_there else ANY


def graph_of_group(
    node: PageNode, group: GroupDefinition, find_spec: FindSpec, add_bytes: Callable[[int], None]
) -> tuple[PageGraph, PageNode]:
    """Return the graph of a group node with the values of this node's widgets, and the node as host of that graph.

    `add_bytes` is called with the length of each name of an input that is made, and raises for too many.
    """
    return _Use(node, group, find_spec, add_bytes).read()


@dataclass
class _Use:
    """One use of a group: its own inputs, outputs and links, and its share of values for each inner node."""

    node: PageNode
    group: GroupDefinition
    find_spec: FindSpec
    add_bytes: Callable[[int], None]
    nodes: dict[str, PageNode] = field(default_factory=dict)
    links: dict[int, Link] = field(default_factory=dict)
    inputs: list[Slot] = field(default_factory=list)
    outputs: list[Slot] = field(default_factory=list)
    seen: dict[str, int] = field(default_factory=dict)

    def read(self) -> tuple[PageGraph, PageNode]:
        self.links.update({link.id: link for link in self.group.links})
        given = self.node.values.values() if isinstance(self.node.values, Mapping) else self.node.values
        values = deque(given)
        sockets = {slot.name for slot in self.node.inputs if slot.widget is None}
        for node in self.group.nodes:
            self.nodes[node.id] = self._with_own_slots(node, values, sockets)
        graph = PageGraph(self.node.type, self.nodes, self.links, tuple(self.inputs), tuple(self.outputs))
        return graph, replace(self.node, values=(), inputs=self._named_inputs())

    def _named_inputs(self) -> tuple[Slot, ...]:
        """Return the node's inputs under the names of the graph's, by position where the names say nothing."""
        known = {slot.name for slot in self.inputs}
        sockets = [slot for slot in self.node.inputs if slot.widget is None]
        if len(sockets) == len(self.inputs) and not known.issuperset(slot.name for slot in sockets):
            return tuple(replace(slot, name=own.name) for slot, own in zip(sockets, self.inputs, strict=True))
        return self.node.inputs

    def _add_link(self, origin: str, origin_slot: int, target: str, target_slot: int) -> int:
        number = len(self.links)
        self.links[number] = Link(number, origin, origin_slot, target, target_slot)
        return number

    def _with_own_slots(self, node: PageNode, values: deque[Any], sockets: Collection[str]) -> PageNode:
        """Return an inner node with its links and with its share of the group's widget values, which is taken off."""
        linked = self.group.linked.get(node.id, {})
        hidden = object_at(self.group.config, node.id, "input")
        node = self._with_values(node, values, hidden, sockets)
        slots = []
        for index, slot in enumerate(node.inputs):
            number = linked.get(index)
            if number is None and object_at(hidden, slot.name).get("visible") is not False:
                number = self._add_link(INPUT_NODE, len(self.inputs), node.id, index)
                self.inputs.append(replace(slot, name=self._name_of(node, slot, hidden), link=None))
            slots.append(replace(slot, link=number))
        self._add_outputs(node)
        return replace(node, inputs=tuple(slots))

    def _with_values(
        self, node: PageNode, values: deque[Any], config: JsonObject, sockets: Collection[str]
    ) -> PageNode:
        """Return an inner node with its share of the group's widget values, which is taken off them."""
        if not values or isinstance(node.values, Mapping):
            return node
        linked = self.group.linked.get(node.id, {})
        converted = {
            slot.widget
            for index, slot in enumerate(node.inputs)
            if slot.widget and (index in linked or _given_name(slot.name, config) in sockets)
        }
        own, position = list(node.values), 0
        for name, num_values in _widgets(node, self.find_spec(node.type)):
            is_shown = name not in converted
            for offset in range(num_values if is_shown else 0):
                if not values:
                    break
                own += [None] * (position + offset + 1 - len(own))
                own[position + offset] = values.popleft()
            if is_shown and name:
                self.seen[name] = self.seen.get(name, 1) + 1
            position += num_values
        return replace(node, values=own)

    def _name_of(self, node: PageNode, slot: Slot, config: JsonObject) -> str:
        """Return the name of an input on the group node."""
        if node.type in REROUTES:  # named for the type that passes through it
            return next((_given_name(kind, config) for kind in config), self.group.type_through(node))
        name = _given_name(slot.name, config) or slot.label or slot.name
        key = name
        if name in self.seen:
            title = (node.title or node.type)[:MAX_TITLE_LENGTH]
            self.add_bytes(len(title) + len(slot.name))
            key = name = f"{title} {slot.name}"
            if name in self.seen:
                name = f"{title} {self.seen[name]} {slot.name}"
        self.seen[key] = self.seen.get(key, 1) + 1
        return name

    def _add_outputs(self, node: PageNode) -> None:
        config = object_at(self.group.config, node.id, "output")
        for index, slot in enumerate(node.outputs):
            place = (node.id, index)
            is_shown = object_at(config, str(index)).get("visible")
            by_links = place not in self.group.used or place in self.group.external
            if not (is_shown if isinstance(is_shown, bool) else by_links):
                continue
            self._add_link(node.id, index, OUTPUT_NODE, len(self.outputs))
            self.outputs.append(slot)


def _external_place(item: object) -> tuple[str, int] | None:
    """Return the inner node and slot of an output that the group also shows; some files hold the whole node."""
    if not isinstance(item, list) or len(item) < 2 or not isinstance(item[1], int):
        return None
    node = item[0].get("index") if isinstance(item[0], Mapping) else item[0]
    return str(node), item[1]


def _given_name(name: str, config: JsonObject) -> str:
    """Return the name that a group's configuration gives to an input; empty without one."""
    given = object_at(config, name).get("name")
    return given if isinstance(given, str) else ""


def _widgets(node: PageNode, spec: NodeSpec | None) -> Iterator[tuple[str, int]]:
    """Yield the name of each widget of a node and the number of values that the page saves for it."""
    if spec is None:
        if node.type == PRIMITIVE:
            yield "", 2 if not isinstance(node.values, Mapping) and len(node.values) > 1 else 1
        return
    for item in spec.inputs:
        if is_widget(item, node):
            yield item.name, 2 if has_control(item) else 1
