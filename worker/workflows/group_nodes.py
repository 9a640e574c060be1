"""Group nodes, the older form of sub-graphs (`extra.groupNodes` in a file), read as sub-graphs. Pure.

The slots and widgets of a group node are those of its nodes, in their order, but for slots that are linked within the
group and those that its configuration hides. A name that is taken is preceded by the title of its node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from engine.graph.spec import NodeSpec
from worker.json_values import JsonObject, object_at
from worker.workflows.front_end_nodes import PRIMITIVE, REROUTES
from worker.workflows.page_graph import INPUT_NODE, OUTPUT_NODE, Link, PageGraph, PageNode, Slot, read_node
from worker.workflows.widgets import has_control, is_widget

PREFIXES: Final = ("workflow>", "workflow/")
ANY: Final = "*"
FindSpec = Callable[[str], NodeSpec | None]


def group_name(class_type: str) -> str:
    """Return the name of the group that a type of node stands for; empty for any other type."""
    prefix = next((prefix for prefix in PREFIXES if class_type.startswith(prefix)), "")
    return class_type.removeprefix(prefix) if prefix else ""


def graph_of_group(node: PageNode, definition: JsonObject, find_spec: FindSpec) -> tuple[PageGraph, PageNode]:
    """Return the graph of a group node with the values of this node's widgets, and the node as host of that graph."""
    return _Group(node, definition, find_spec).read()


@dataclass
class _Group:
    node: PageNode
    definition: JsonObject
    find_spec: FindSpec
    nodes: dict[str, PageNode] = field(default_factory=dict)
    links: dict[int, Link] = field(default_factory=dict)
    inputs: list[Slot] = field(default_factory=list)
    outputs: list[Slot] = field(default_factory=list)
    seen: dict[str, int] = field(default_factory=dict)

    def read(self) -> tuple[PageGraph, PageNode]:
        found = self.definition.get("nodes")
        items = [item for item in found if isinstance(item, Mapping)] if isinstance(found, list) else []
        inner = [read_node(item, str(index)) for index, item in enumerate(items)]
        self._add_links()
        values = list(self.node.values.values() if isinstance(self.node.values, Mapping) else self.node.values)
        for node in inner:
            self.nodes[node.id] = self._with_own_slots(node, values)
        graph = PageGraph(self.node.type, self.nodes, self.links, tuple(self.inputs), tuple(self.outputs))
        return graph, replace(self.node, values=(), inputs=self._named_inputs())

    def _named_inputs(self) -> tuple[Slot, ...]:
        """Return the node's inputs under the names of the graph's, by position where the names say nothing."""
        known = {slot.name for slot in self.inputs}
        sockets = [slot for slot in self.node.inputs if slot.widget is None]
        if len(sockets) == len(self.inputs) and not known.issuperset(slot.name for slot in sockets):
            return tuple(replace(slot, name=own.name) for slot, own in zip(sockets, self.inputs, strict=True))
        return self.node.inputs

    def _add_links(self) -> None:
        found = self.definition.get("links")
        for item in found if isinstance(found, list) else ():
            if (
                isinstance(item, list)
                and len(item) >= 4
                and all(isinstance(part, int) and part >= 0 for part in item[:4])
            ):
                self._add_link(str(item[0]), item[1], str(item[2]), item[3])

    def _add_link(self, origin: str, origin_slot: int, target: str, target_slot: int) -> int:
        number = len(self.links)
        self.links[number] = Link(number, origin, origin_slot, target, target_slot)
        return number

    def _with_own_slots(self, node: PageNode, values: list[Any]) -> PageNode:
        """Return an inner node with its links and with its share of the group's widget values, which is taken off."""
        linked = {link.target_slot: link.id for link in self.links.values() if link.target_id == node.id}
        hidden = object_at(self.definition, "config", node.id, "input")
        spec = self.find_spec(node.type)
        node = self._with_values(node, spec, values, hidden)
        slots = []
        for index, slot in enumerate(node.inputs):
            number = linked.get(index)
            if number is None and object_at(hidden, slot.name).get("visible") is not False:
                number = self._add_link(INPUT_NODE, len(self.inputs), node.id, index)
                self.inputs.append(replace(slot, name=self._name_of(node, slot, hidden), link=None))
            slots.append(replace(slot, link=number))
        self._add_outputs(node)
        return replace(node, inputs=tuple(slots))

    def _with_values(self, node: PageNode, spec: NodeSpec | None, values: list[Any], config: JsonObject) -> PageNode:
        """Return an inner node with its share of the group's widget values, which is taken off them."""
        sockets = {slot.name for slot in self.node.inputs if slot.widget is None}
        linked = {link.target_slot for link in self.links.values() if link.target_id == node.id}
        converted = {
            slot.widget
            for index, slot in enumerate(node.inputs)
            if slot.widget and (index in linked or _given_name(slot.name, config) in sockets)
        }
        shown = list(_widgets(node, spec))
        if not values or isinstance(node.values, Mapping):
            return node
        own, position = list(node.values), 0
        for name, num_values in shown:
            is_shown = name not in converted
            for offset in range(num_values if is_shown else 0):
                if not values:
                    break
                own += [None] * (position + offset + 1 - len(own))
                own[position + offset] = values.pop(0)
            if is_shown and name:
                self.seen[name] = self.seen.get(name, 1) + 1
            position += num_values
        return replace(node, values=own)

    def _name_of(self, node: PageNode, slot: Slot, config: JsonObject) -> str:
        """Return the name of an input on the group node."""
        if node.type in REROUTES:  # named for the type that passes through it
            return next((_given_name(kind, config) for kind in config), self._type_from(node))
        name = _given_name(slot.name, config) or slot.label or slot.name
        key = name
        if name in self.seen:
            key = name = f"{node.title or node.type} {slot.name}"
            if name in self.seen:
                name = f"{node.title or node.type} {self.seen[name]} {slot.name}"
        self.seen[key] = self.seen.get(key, 1) + 1
        return name

    def _type_from(self, node: PageNode) -> str:
        """Return the type of what passes through a reroute: of the input that takes it, else as its links name it."""
        taken = (self._type_of_input(link) for link in self.links.values() if link.origin_id == node.id)
        found = self.definition.get("links")
        links = [item for item in found if isinstance(item, list) and len(item) > 5] if isinstance(found, list) else []
        named = (str(item[5]) for item in links if node.id in (str(item[0]), str(item[2])))
        return next((kind for kind in (*taken, *named) if kind != ANY), ANY)

    def _type_of_input(self, link: Link) -> str:
        """Return the type of the inner input that a link leads to."""
        found = self.definition.get("nodes")
        inner = [item for item in found if isinstance(item, Mapping)] if isinstance(found, list) else []
        node = inner[int(link.target_id)] if int(link.target_id) < len(inner) else {}
        slots = node.get("inputs")
        slot = slots[link.target_slot] if isinstance(slots, list) and link.target_slot < len(slots) else None
        return str(slot.get("type", ANY)) if isinstance(slot, Mapping) else ANY

    def _add_outputs(self, node: PageNode) -> None:
        found = self.definition.get("external")
        found = found if isinstance(found, list) else ()
        external = {place for item in found if (place := _external_place(item)) is not None}
        used = {(link.origin_id, link.origin_slot) for link in self.links.values()}
        config = object_at(self.definition, "config", node.id, "output")
        for index, slot in enumerate(node.outputs):
            place = (node.id, index)
            is_shown = object_at(config, str(index)).get("visible")
            if not (is_shown if isinstance(is_shown, bool) else place not in used or place in external):
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
