"""Workflows as ComfyUI's page saves them, read into data: nodes, slots, links and sub-graph definitions. Pure.

Schema version 0.4 writes a link as `[id, origin, slot, target, slot, type]`, version 1 and sub-graphs as an object.
What is not as the page writes it is passed over: a file that people have edited for years is rarely whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from darkroom.worker.json.values import JsonObject, object_at

ALWAYS: Final = 0
NEVER: Final = 2  # muted
BYPASS: Final = 4
INPUT_NODE: Final = "-10"  # ids of a sub-graph's own inputs and outputs in its links
OUTPUT_NODE: Final = "-20"
QUARANTINE: Final = "proxyWidgetErrorQuarantine"  # values that the page kept when it read an older file


@dataclass(frozen=True, slots=True)
class Slot:
    """Input or output of a node. `link` is the first, `widget` the name of the widget that the input stands for."""

    name: str
    type: str = "*"
    link: int | None = None
    widget: str | None = None
    label: str | None = None


@dataclass(frozen=True, slots=True)
class Link:
    id: int
    origin_id: str
    origin_slot: int
    target_id: str
    target_slot: int


@dataclass(frozen=True)
class PageNode:
    """Node of a page. `values` is what the page saved of its widgets: a list by order or an object by name.

    `value_names` are the widgets' names in the order of the list, which newer pages save beside it; else empty.
    """

    id: str
    type: str
    title: str = ""
    mode: int = ALWAYS
    inputs: tuple[Slot, ...] = ()
    outputs: tuple[Slot, ...] = ()
    values: Sequence[Any] | JsonObject = ()
    properties: JsonObject = field(default_factory=dict)
    value_names: tuple[str, ...] = ()

    @cached_property
    def widget_names(self) -> frozenset[str]:
        """Names of the widgets that inputs of the node stand for."""
        return frozenset(slot.widget for slot in self.inputs if slot.widget is not None)

    @property
    def proxy_widgets(self) -> Sequence[Any]:
        """Widgets within a sub-graph that its host shows, as the page saved them."""
        return _list(self.properties.get("proxyWidgets"))

    @property
    def kept_values(self) -> Sequence[Any]:
        """Values of a sub-graph's use that the page kept when it moved the file to a newer form, as it saved them."""
        return _list(self.properties.get(QUARANTINE))

    @property
    def search_name(self) -> str:
        """Name by which texts of other nodes refer to this one; empty without one."""
        return str(self.properties.get("Node name for S&R") or "")

    @property
    def first_value(self) -> object:
        """Value of the only widget of a node such as PrimitiveNode, GetNode or SetNode; None without one."""
        return next(iter(self.values.values() if isinstance(self.values, Mapping) else self.values), None)


@dataclass(frozen=True)
class PageGraph:
    """Nodes and links of a page, or of a sub-graph, whose own slots are `inputs` and `outputs`.

    Each index over them is made once: a look-up costs the same however large the graph is.
    """

    id: str
    nodes: Mapping[str, PageNode]
    links: Mapping[int, Link]
    inputs: tuple[Slot, ...] = ()
    outputs: tuple[Slot, ...] = ()

    @cached_property
    def links_of_inputs(self) -> Mapping[int, tuple[Link, ...]]:
        """Links from the graph's own inputs to nodes that it has, by the index of the input."""
        found: dict[int, list[Link]] = {}
        for link in self.links.values():
            if link.origin_id == INPUT_NODE and link.target_id in self.nodes:
                found.setdefault(link.origin_slot, []).append(link)
        return {slot: tuple(links) for slot, links in found.items()}

    @cached_property
    def links_of_outputs(self) -> Mapping[int, Link]:
        """Link that ends at each of the graph's own outputs, by the index of the output."""
        return {link.target_slot: link for link in self.links.values() if link.target_id == OUTPUT_NODE}

    @cached_property
    def input_indices(self) -> Mapping[str, int]:
        """Index of each of the graph's own inputs by its name, of several the first."""
        return {slot.name: index for index, slot in reversed(list(enumerate(self.inputs)))}

    @cached_property
    def inputs_called(self) -> Mapping[str, tuple[int, ...]]:
        """Indices of the graph's own inputs by their names and labels."""
        found: dict[str, dict[int, None]] = {}
        for index, slot in enumerate(self.inputs):
            for name in (slot.name, slot.label):
                if name is not None:
                    found.setdefault(name, {})[index] = None
        return {name: tuple(indices) for name, indices in found.items()}

    @cached_property
    def num_elements(self) -> int:
        """Number of nodes, links, slots and values: what each use of a sub-graph costs."""
        of_nodes = sum(
            1
            + len(node.inputs)
            + len(node.outputs)
            + len(node.values)
            + len(node.proxy_widgets)
            + len(node.kept_values)
            for node in self.nodes.values()
        )
        return of_nodes + len(self.links) + len(self.inputs) + len(self.outputs)


def is_page_format(document: JsonObject) -> bool:
    """Return True for a workflow as the page saves it, which ComfyUI's API does not take."""
    return isinstance(document.get("nodes"), list)


def count_nodes(document: JsonObject) -> int:
    """Return the number of nodes and links in a file, sub-graphs and group nodes counted once each."""
    parts = [document, *definitions_in(document).values(), *groups_in(document).values()]
    return sum(len(_list(part.get("nodes"))) for part in parts)


def count_links(document: JsonObject) -> int:
    """Return the number of links in a file."""
    parts = [document, *definitions_in(document).values(), *groups_in(document).values()]
    return sum(len(links) for part in parts if isinstance(links := part.get("links"), list | dict))


def definitions_in(document: JsonObject) -> Mapping[str, JsonObject]:
    """Return the sub-graph definitions of a file by id."""
    found = _list(object_at(document, "definitions").get("subgraphs"))
    return {str(item.get("id")): item for item in found if isinstance(item, Mapping)}


def groups_in(document: JsonObject) -> Mapping[str, JsonObject]:
    """Return the group nodes of a file by name."""
    groups = object_at(document, "extra", "groupNodes")
    return {name: item for name, item in groups.items() if isinstance(item, Mapping)}


def read_graph(document: JsonObject) -> PageGraph:
    """Read a page or a sub-graph definition."""
    nodes = [read_node(item) for item in _list(document.get("nodes")) if isinstance(item, Mapping)]
    return PageGraph(
        id=str(document.get("id") or ""),
        nodes={node.id: node for node in nodes},
        links={link.id: link for link in _links(document.get("links"))},
        inputs=_slots(document.get("inputs")),
        outputs=_slots(document.get("outputs")),
    )


def read_node(item: JsonObject, node_id: str | None = None) -> PageNode:
    """Read a node; `node_id` is given for one of a group node, which has an index instead."""
    properties = object_at(item, "properties")
    values, named = item.get("widgets_values"), object_at(item, "widgets_values_named")
    return PageNode(
        id=str(item.get("id")) if node_id is None else node_id,
        type=str(item.get("type") or ""),
        title=str(item.get("title") or properties.get("Node name for S&R") or item.get("type") or ""),
        mode=_integer(item.get("mode"), ALWAYS),
        inputs=_slots(item.get("inputs")),
        outputs=_slots(item.get("outputs")),
        values=values if isinstance(values, list | Mapping) else named,
        properties=properties,
        value_names=_value_names(named, values),
    )


def _value_names(named: JsonObject, values: object) -> tuple[str, ...]:
    """Return the names of a list of values; empty where they are not those of this list, one by one.

    Names are unique in an object, and JavaScript writes those that are numbers first.
    """
    is_list = isinstance(values, list) and len(named) == len(values)
    return tuple(named) if is_list and not any(name.isdecimal() for name in named) else ()


def _slots(value: object) -> tuple[Slot, ...]:
    return tuple(_slot(item) for item in _list(value) if isinstance(item, Mapping))


def _slot(item: JsonObject) -> Slot:
    widget = object_at(item, "widget").get("name")
    links, label = _list(item.get("links") or item.get("linkIds")), item.get("label")
    link = links[0] if links else item.get("link")
    kind = item.get("type")
    return Slot(
        name=str(item.get("name") or ""),
        type=kind if isinstance(kind, str) else "*" if not isinstance(kind, list) else "COMBO",
        link=_integer(link, -1) if link is not None else None,
        widget=widget if isinstance(widget, str) else None,
        label=label if isinstance(label, str) else None,
    )


def _links(value: object) -> Iterator[Link]:
    for item in value.values() if isinstance(value, Mapping) else _list(value):
        if isinstance(item, Mapping):
            names = ("id", "origin_id", "origin_slot", "target_id", "target_slot")
            parts = [item.get(name) for name in names]
        else:
            parts = _list(item)[:5]
        if len(parts) == 5:
            link, origin_slot, target_slot = (_integer(parts[index], -1) for index in (0, 2, 4))
            if origin_slot >= 0 and target_slot >= 0:
                yield Link(link, str(parts[1]), origin_slot, str(parts[3]), target_slot)


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _integer(value: object, default: int) -> int:
    """Return an integer, also of one that is written as text or with a fraction."""
    if isinstance(value, str) and value.removeprefix("-").isdecimal() and len(value) < 20:
        return int(value)
    return int(value) if isinstance(value, int | float) else default
