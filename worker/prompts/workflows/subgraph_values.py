"""Values that a use of a sub-graph gives to the inputs of its definition, and to widgets within it. Pure.

A definition's input is a widget of each use where a link leads from it to a widget of a node within. The page's
versions save the values of these widgets in several forms, from the oldest to the newest:

    a list                  in the order of the definition's inputs
    a list, `proxyWidgets`  in the order of the inputs, or, where an entry of node -1 is listed, in that of the entries,
                            with null for an entry of a node within, whose own widget holds the value
    `widgets_values_named`  the names of the list's values, in the order of the list

`inputs` of the use say nothing: the page leaves those out that have neither a link nor a label. A list that can be read
in no way, or in two ways that differ, is refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from darkroom.contract.graph.spec import DYNAMIC_COMBO, InputSpec, NodeSpec
from darkroom.worker.errors import Problem
from darkroom.worker.prompts.workflows.page_graph import INPUT_NODE, PageGraph, PageNode
from darkroom.worker.prompts.workflows.widgets import CONTROLS, has_control

OUTER: Final = "-1"  # in a list of promoted widgets: the widget of the sub-graph's own input
MAX_LISTED: Final = 50  # names in a message
MAX_NESTED: Final = 50  # sub-graphs that an input leads through

FindSpec = Callable[[str], NodeSpec | None]
FindPromoted = Callable[[str], "PromotedInputs | None"]


class AmbiguousValues(ValueError):
    """Saved values of a sub-graph's use that cannot be assigned with certainty."""

    def __init__(self, message: str, names: Sequence[str]) -> None:
        super().__init__(message)
        self.names = tuple(names[:MAX_LISTED])

    def as_problem(self, node_id: str, class_type: str) -> Problem:
        return Problem(str(self), "input.workflow_json", node_id, class_type, "ambiguous_values", list(self.names))


@dataclass(frozen=True, slots=True)
class HostValues:
    """Values of a use: of the definition's inputs by name, and of widgets within by node id and name."""

    promoted: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[tuple[str, str], Any] = field(default_factory=dict)


class PromotedInputs:
    """The inputs of one definition that are widgets of its uses, in their order, each with the widgets that it sets.

    `nested` finds those of another definition by the type of its uses.
    """

    def __init__(self, graph: PageGraph, find_spec: FindSpec, nested: FindPromoted) -> None:
        self._targets: dict[str, tuple[PageNode, str]] = {}
        self._with_controls: list[str | None] | None = None
        self._inputs: dict[tuple[str, str], str] = {}  # names of inputs, by the widget within that they set
        self._find_spec, self._nested = find_spec, nested
        self._shared: list[str] = []
        targets: dict[int, list[tuple[bool, int, PageNode, str]]] = {}
        num_targets: Counter[int] = Counter()
        for node in graph.nodes.values():
            for slot in node.inputs:
                link = graph.links.get(slot.link) if slot.link is not None else None
                if link is None or link.origin_id != INPUT_NODE or link.origin_slot >= len(graph.inputs):
                    continue
                num_targets[link.origin_slot] += 1
                if slot.widget is not None:
                    own = graph.inputs[link.origin_slot]
                    targets.setdefault(link.origin_slot, []).append((link.id != own.link, link.id, node, slot.name))
                    self._inputs[node.id, slot.name] = own.name
        for index, slot in enumerate(graph.inputs):
            if index in targets:
                *_, node, name = min(targets[index], key=lambda target: target[:2])
                self._targets[slot.name] = node, name
                if num_targets[index] > 1 or find_spec(node.type) is None:
                    self._shared.append(slot.name)
        self.names = tuple(self._targets)

    def __contains__(self, name: str) -> bool:
        return name in self._targets

    def names_with_controls(self) -> list[str | None]:
        """Return the names with None after that of each widget with a control of its next value."""
        if self._with_controls is None:
            specs = ((name, self.spec_of(name)) for name in self.names)
            pairs = ([name, None] if item is not None and has_control(item) else [name] for name, item in specs)
            self._with_controls = [part for pair in pairs for part in pair]
        return self._with_controls

    def shared(self) -> Iterator[tuple[str, PageNode, str]]:
        """Yield the name of each input that leads to several places, or into a use within, and its first widget."""
        for name in self._shared:
            yield name, *self._targets[name]

    def target_of(self, name: str) -> tuple[PageNode, str] | None:
        """Return the first node within whose widget an input sets, and the widget's name."""
        return self._targets.get(name)

    def input_of(self, node_id: str, widget: str) -> str | None:
        """Return the name of the input that sets a widget within; None if none does."""
        return self._inputs.get((node_id, widget))

    def spec_of(self, name: str) -> InputSpec | None:
        """Return the declaration of the widget that an input sets; None if its class is unknown."""
        promoted: PromotedInputs | None = self
        for _ in range(MAX_NESTED):
            target = None if promoted is None else promoted.target_of(name)
            if target is None:
                return None
            node, name = target
            spec = self._find_spec(node.type)
            if spec is not None:
                return next((item for item in spec.inputs if item.name == name), None)
            promoted = self._nested(node.type)
        return None


def read_host_values(host: PageNode, promoted: PromotedInputs) -> HostValues:
    """Return the values that a use of a sub-graph gives. Raises AmbiguousValues."""
    found = _saved_values(host, promoted)
    kept = {name: value for name, value in _kept_values(host) if name in promoted}
    return HostValues({**found.promoted, **kept}, found.settings)


def _saved_values(host: PageNode, promoted: PromotedInputs) -> HostValues:
    if isinstance(host.values, Mapping):
        return HostValues(host.values)
    values = list(host.values)
    while values and values[-1] is None:
        values.pop()
    if not values:
        return HostValues()
    if host.value_names:
        return _checked(host, HostValues(dict(_given(zip(host.value_names, host.values, strict=True)))), promoted)
    entries = list(_entries(host.proxy_widgets))
    readings: list[HostValues] = []
    if any(node_id == OUTER for node_id, _ in entries):
        if len(values) <= len(entries):
            readings.append(_by_entries(entries, values, promoted))
    else:
        readings += _by_order(promoted, list(host.values))
        if len(host.values) == len(entries):
            readings.append(_by_entries(entries, values, promoted))
    distinct = [reading for index, reading in enumerate(readings) if reading not in readings[:index]]
    if len(distinct) > 1:
        distinct = [reading for reading in distinct if not _misfits(host, reading, promoted, is_strict=True)]
    if len(distinct) != 1:
        raise _uncertain(host, values, promoted.names)
    return _checked(host, distinct[0], promoted)


def _by_order(promoted: PromotedInputs, values: list[Any]) -> Iterator[HostValues]:
    """Yield the values as those of the inputs in their order, with or without the controls that a seed has."""
    if len(values) == len(promoted.names):
        yield HostValues(dict(_given(zip(promoted.names, values, strict=True))))
    elif len(values) == len(promoted.names_with_controls()):
        pairs = list(zip(promoted.names_with_controls(), values, strict=True))
        if all(name is not None or value is None or _is_control(value) for name, value in pairs):
            yield HostValues(dict(_given((name, value) for name, value in pairs if name is not None)))


def _by_entries(entries: list[tuple[str, str]], values: list[Any], promoted: PromotedInputs) -> HostValues:
    """Return the values as those of the listed widgets. As on the page, a later entry of the same widget applies."""
    outer: dict[str, Any] = {}
    settings: dict[tuple[str, str], Any] = {}
    for (node_id, name), value in zip(entries, values, strict=False):
        own = name if node_id == OUTER else promoted.input_of(node_id, name)
        if value is None:
            continue
        if own is not None:
            outer[own] = value
        else:
            settings[node_id, name] = value
    return HostValues(outer, settings)


def _checked(host: PageNode, values: HostValues, promoted: PromotedInputs) -> HostValues:
    """Return values whose types are those of the widgets. Raises AmbiguousValues for any other."""
    for name, value, item in _misfits(host, values, promoted, is_strict=False):
        kind = "COMBO" if item.choices is not None else item.type
        message = (
            f"value of {name} of the sub-graph has another type than its widget; got {_shown(value)}, expected {kind}"
        )
        raise AmbiguousValues(message, promoted.names)
    return values


def _misfits(
    host: PageNode, values: HostValues, promoted: PromotedInputs, *, is_strict: bool
) -> list[tuple[str, Any, InputSpec]]:
    """Return the values that do not fit their widgets, but for those of linked inputs, which nothing reads."""
    linked = {slot.name for slot in host.inputs if slot.link is not None}
    pairs = ((name, value, promoted.spec_of(name)) for name, value in values.promoted.items() if name not in linked)
    fits = _fits if is_strict else _has_type
    return [(name, value, item) for name, value, item in pairs if item is not None and not fits(item, value)]


def _has_type(item: InputSpec, value: object) -> bool:
    """Return True if a value has the type of a widget."""
    kind = str(item.type).partition(":")[0]
    if item.choices is not None or kind == DYNAMIC_COMBO:
        choices = item.choices or ()
        return value in choices or isinstance(value, str) or bool(choices and not any(_is_text(one) for one in choices))
    if kind == "STRING":
        return isinstance(value, str)
    if kind == "BOOLEAN":
        return isinstance(value, bool) or value in (0, 1)
    if kind in ("INT", "FLOAT"):
        is_whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
        return not isinstance(value, bool) and (is_whole or (kind == "FLOAT" and isinstance(value, float)))
    return True


def _fits(item: InputSpec, value: object) -> bool:
    """Return True if a value also lies in the range, or among the choices, of a widget; a file may be still to come."""
    if not _has_type(item, value):
        return False
    if item.choices is not None:
        return item.accepts(value) or (isinstance(value, str) and "." in value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        low, high = (item.options.get(key) for key in ("min", "max"))
        is_low = isinstance(low, int | float) and value < low
        return not is_low and not (isinstance(high, int | float) and value > high)
    return True


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_control(value: object) -> bool:
    return isinstance(value, str) and value in CONTROLS


def _given(pairs: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Yield the pairs with a value: null leaves that of the widget within."""
    return ((name, value) for name, value in pairs if value is not None)


def _entries(items: Sequence[Any]) -> Iterator[tuple[str, str]]:
    for item in items:
        if isinstance(item, list) and len(item) >= 2:
            yield str(item[0]), str(item[1])


def _kept_values(host: PageNode) -> Iterator[tuple[str, Any]]:
    """Yield the values of inputs that the page kept when it moved a file to a newer form; the page reads them first."""
    for item in reversed(host.kept_values):
        entry = item.get("originalEntry") if isinstance(item, Mapping) else None
        if isinstance(entry, list) and len(entry) >= 2 and str(entry[0]) == OUTER and item.get("hostValue") is not None:
            yield str(entry[1]), item["hostValue"]


def _uncertain(host: PageNode, values: Sequence[Any], names: Sequence[str]) -> AmbiguousValues:
    listed = ", ".join(names[:MAX_LISTED]) or "no widget"
    what = f"values of the sub-graph {host.title!r} cannot be assigned to its widgets with certainty"
    advice = "open the workflow in a current version of the page and save it, or send the prompt in API format"
    return AmbiguousValues(f"{what}; got {len(values)}, expected {len(names)}: {listed}; {advice}", names)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
