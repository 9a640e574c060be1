"""Overrides of a workflow: values for inputs that are named by node id, title, class, or by the input alone. Pure.

    6.text           the input `text` of node 6
    My title.cfg     that of every node of this title
    KSampler.steps   that of every node of this class
    #seed            every input of this name that has a value; first, the inputs of this name in the page's app mode

Where two overrides name one input, the more specific one applies, in the order of the table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Final

from names.nearest import nearest_name, nearest_names
from worker.errors import Problem, RequestRejected
from worker.json_values import JsonObject, object_at

EVERY: Final = "#"
FIELD: Final = "input.overrides"
INPUTS_FIELD: Final = "input.inputs"
MAX_NEAREST: Final = 8
MAX_HINTED: Final = 10  # unknown overrides whose nearest names are looked for
MAX_COMPARED: Final = 2000
MAX_TARGET_LENGTH: Final = 300
SECTIONS: Final = ("required", "optional")


@dataclass(frozen=True, slots=True)
class Place:
    """Input of a node of a prompt."""

    node_id: str
    input_name: str

    @property
    def target(self) -> str:
        return f"{self.node_id}.{self.input_name}"


@dataclass(frozen=True, slots=True)
class Overridden:
    """A prompt with its overrides applied, and the field of the request that set each input."""

    prompt: JsonObject
    fields: Mapping[Place, str] = field(default_factory=dict)

    def field_at(self, node_id: str, input_name: str) -> str | None:
        """Return the field of the request that set an input; None for an input that none set."""
        return self.fields.get(Place(node_id, input_name))

    def values_in(self, prompt: JsonObject) -> dict[str, Any]:
        """Return the values that a later form of the prompt has in the overridden inputs, by `ID.INPUT`."""
        nodes = {place: object_at(prompt, place.node_id, "inputs") for place in self.fields}
        return {place.target: inputs.get(place.input_name) for place, inputs in nodes.items()}


def override(
    prompt: JsonObject,
    overrides: Mapping[str, Any],
    object_info: JsonObject,
    named_inputs: Mapping[str, tuple[Place, ...]] | None = None,
    inputs: Mapping[str, Any] | None = None,
) -> Overridden:
    """Return the prompt with the overrides applied; a null leaves the workflow's value.

    `named_inputs` are those of a stored workflow or of the page's app mode, and `inputs` values for them, by name; any
    override of the same input applies in their place. Raises RequestRejected with a problem for each name that fits no
    input of the workflow.
    """
    known = _Inputs(prompt, object_info, named_inputs or {})
    found: list[tuple[int, str, Any, tuple[Place, ...]]] = []
    problems: list[Problem] = []
    unknown: list[str] = []
    for name, value in (inputs or {}).items():
        places = known.named(name)
        if places:
            found.append((-1, f"{INPUTS_FIELD}.{name}", value, places))
        else:
            problems.append(_unknown_name(name, named_inputs or {}))
    for target, value in overrides.items():
        rank, places = known.find(target)
        if places:
            found.append((rank, f"{FIELD}.{target}", value, places))
        else:
            unknown.append(target)
    problems += [known.unknown(target) for target in unknown[:MAX_HINTED]]
    if problems:
        raise RequestRejected(problems, num_unlisted=len(unknown[MAX_HINTED:]))
    fields: dict[Place, str] = {}
    changed: dict[str, Any] = dict(prompt)
    for _, name, value, places in sorted(found, key=lambda entry: entry[0]):
        for place in places if value is not None else ():
            node = changed[place.node_id]
            changed[place.node_id] = {**node, "inputs": {**node["inputs"], place.input_name: value}}
            fields[place] = name
    return Overridden(changed, fields)


def find_places(prompt: JsonObject, targets: Sequence[str], object_info: JsonObject, field: str) -> tuple[Place, ...]:
    """Return the inputs of a prompt that targets name. Raises RequestRejected for `field` if one names none."""
    known = _Inputs(prompt, object_info, {})
    places: dict[Place, None] = {}
    for target in targets:
        found = known.find(target)[1]
        if not found:
            raise RequestRejected([replace(known.unknown(target), field=field)])
        places |= dict.fromkeys(found)
    return tuple(places)


def _unknown_name(name: str, named_inputs: Mapping[str, object]) -> Problem:
    shown, nearest = name[:MAX_TARGET_LENGTH], nearest_name(name, named_inputs, by_start=True)
    hint = f"; did you mean {nearest}?" if nearest else ""
    message = f"{shown}: the workflow has no input of this name{hint}"
    return Problem(message, f"{INPUTS_FIELD}.{shown}", type="unknown_input", allowed=list(named_inputs)[:MAX_COMPARED])


class _Inputs:
    """Inputs of a prompt, by each of their names."""

    def __init__(
        self, prompt: JsonObject, object_info: JsonObject, named_inputs: Mapping[str, tuple[Place, ...]]
    ) -> None:
        self._object_info = object_info
        self._named_inputs = named_inputs
        self._nodes: dict[str, JsonObject] = {}
        self._ids: dict[str, dict[str, list[str]]] = {"id": {}, "title": {}, "class": {}}
        self._with_value: dict[str, list[Place]] = {}
        for node_id in prompt:
            node = object_at(prompt, node_id)
            if isinstance(node.get("inputs"), Mapping):
                self._add(node_id, node)

    def _add(self, node_id: str, node: JsonObject) -> None:
        self._nodes[node_id] = node
        for kind, name in self._names_of(node_id).items():
            self._ids[kind].setdefault(name, []).append(node_id)
        for name, value in object_at(node, "inputs").items():
            if not _is_link(value):
                self._with_value.setdefault(name, []).append(Place(node_id, name))

    def find(self, target: str) -> tuple[int, tuple[Place, ...]]:
        """Return the rank of a target, higher for a more specific one, and its inputs; none for an unknown one."""
        if len(target) > MAX_TARGET_LENGTH:
            return 0, ()
        if target.startswith(EVERY):
            return 0, self._every(target.removeprefix(EVERY))
        for rank, kind in ((3, "id"), (2, "title"), (1, "class")):
            for node_name, input_name in _splits(target):
                found = (node_id for node_id in self._ids[kind].get(node_name, ()) if self._takes(node_id, input_name))
                places = tuple(Place(node_id, input_name) for node_id in found)
                if places:
                    return rank, places
        return 0, ()

    def unknown(self, target: str) -> Problem:
        """Return the problem of a target that names no input, with the names that it may have meant."""
        shown = target[:MAX_TARGET_LENGTH]
        names = self._names_beside(shown) or list(islice(self._names(), MAX_COMPARED))
        nearest = nearest_names(shown, names, limit=MAX_NEAREST) or tuple(names[:MAX_NEAREST])
        message = f"{shown}: no such input in the workflow; expected the node's id, title or class, a dot and the input"
        return Problem(message, f"{FIELD}.{shown}", type="unknown_input", allowed=list(nearest))

    def named(self, name: str) -> tuple[Place, ...]:
        """Return the inputs of a named input that the prompt has."""
        return tuple(place for place in self._named_inputs.get(name, ()) if place.node_id in self._nodes)

    def _every(self, name: str) -> tuple[Place, ...]:
        return self.named(name) or tuple(self._with_value.get(name, ()))

    def _takes(self, node_id: str, input_name: str) -> bool:
        node = self._nodes[node_id]
        declared = object_at(self._object_info, str(node.get("class_type")), "input")
        return input_name in object_at(node, "inputs") or any(
            input_name in object_at(declared, section) for section in SECTIONS
        )

    def _names_of(self, node_id: str) -> dict[str, str]:
        """Return the names of a node by their kind."""
        node = self._nodes[node_id]
        title = object_at(node, "_meta").get("title")
        named = {"id": node_id, "title": title, "class": node.get("class_type")}
        return {kind: name for kind, name in named.items() if isinstance(name, str) and name}

    def _names_beside(self, target: str) -> list[str]:
        """Return the inputs of the nodes that a target names; empty for one that names no node."""
        return [
            f"{node_name}.{name}"
            for node_name, _ in _splits(target)
            for ids in self._ids.values()
            for node_id in ids.get(node_name, ())[:1]
            for name in object_at(self._nodes[node_id], "inputs")
        ]

    def _names(self) -> Iterator[str]:
        """Yield every name of an input that has a value."""
        yield from (f"{EVERY}{name}" for name in (*self._named_inputs, *self._with_value))
        for places in self._with_value.values():
            for place in places:
                yield from (f"{name}.{place.input_name}" for name in self._names_of(place.node_id).values())


def _splits(target: str) -> Iterator[tuple[str, str]]:
    """Yield each split of a target at a dot: titles and inputs may have dots, too."""
    for index, character in enumerate(target):
        if character == "." and 0 < index < len(target) - 1:
            yield target[:index], target[index + 1 :]


def _is_link(value: object) -> bool:
    return isinstance(value, list) and len(value) == 2 and isinstance(value[0], str) and isinstance(value[1], int)
