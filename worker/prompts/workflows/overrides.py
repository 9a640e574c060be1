"""Overrides of a workflow: values for inputs that are named by node id, title, class, or by the input alone. Pure.

    6.text           the input `text` of node 6
    My title.cfg     that of every node of this title
    KSampler.steps   that of every node of this class
    #seed            every input of this name that has a value; first, the inputs of this name in the page's app mode

Where two overrides name one input, the more specific one applies, in the order of the table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Final

from darkroom.contract.graph.prompt import is_link
from darkroom.contract.nearest import nearest_name, nearest_names
from darkroom.worker.errors import Problem, RequestRejected
from darkroom.worker.json.values import JsonObject, object_at
from darkroom.worker.prompts.workflows.expansion import Expansion
from darkroom.worker.storage.stored_workflow import Place

EVERY: Final = "#"
FIELD: Final = "input.overrides"
INPUTS_FIELD: Final = "input.inputs"
MAX_NEAREST: Final = 8
MAX_HINTED: Final = 10  # unknown overrides whose nearest names are looked for
MAX_COMPARED: Final = 2000
MAX_TARGET_LENGTH: Final = 300
MAX_SHOWN: Final = 1000
SECTIONS: Final = ("required", "optional")


@dataclass(frozen=True, slots=True)
class Overridden:
    """A prompt with its overrides applied, and the field of the request that set each input."""

    prompt: JsonObject
    fields: Mapping[Place, str] = field(default_factory=dict)

    def field_at(self, node_id: str, input_name: str) -> str | None:
        """Return the field of the request that set an input; None for an input that none set."""
        return self.fields.get(Place(node_id, input_name))

    def values_in(self, prompt: JsonObject) -> dict[str, Any]:
        """Return the values that a later form of the prompt has in the overridden inputs, by `ID.INPUT`.

        At most MAX_SHOWN: they are repeated in the result.
        """
        shown = islice(self.fields, MAX_SHOWN)
        nodes = {place: object_at(prompt, place.node_id, "inputs") for place in shown}
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
    num_unlisted = 0
    expansion = Expansion()
    for name, value in (inputs or {}).items():
        places = known.named(name)
        if places:
            expansion.add(value, len(places))
            found.append((-1, f"{INPUTS_FIELD}.{name}", value, places))
        elif len(problems) < MAX_HINTED:
            problems.append(_unknown_name(name, named_inputs or {}))
        else:
            num_unlisted += 1
    for target, value in overrides.items():
        rank, places = known.find(target)
        if places:
            expansion.add(value, len(places))
            found.append((rank, f"{FIELD}.{target}", value, places))
        else:
            unknown.append(target)
    problems += [known.unknown(target) for target in unknown[:MAX_HINTED]]
    if problems:
        raise RequestRejected(problems, num_unlisted=num_unlisted + len(unknown[MAX_HINTED:]))
    return _with_values(prompt, found)


def _with_values(prompt: JsonObject, found: Sequence[tuple[int, str, Any, tuple[Place, ...]]]) -> Overridden:
    """Return a prompt with values, each with its rank, the field that has it, and its inputs."""
    fields: dict[Place, str] = {}
    given: dict[str, dict[str, Any]] = {}  # by node
    for _, name, value, places in sorted(found, key=lambda entry: entry[0]):
        for place in places if value is not None else ():
            given.setdefault(place.node_id, {})[place.input_name] = value
            fields[place] = name
    changed: dict[str, Any] = dict(prompt)
    for node_id, values in given.items():
        node = changed[node_id]
        changed[node_id] = {**node, "inputs": {**node["inputs"], **values}}
    return Overridden(changed, fields)


class PlaceFinder:
    """Inputs of one prompt by the targets that name them."""

    def __init__(self, prompt: JsonObject, object_info: JsonObject) -> None:
        self._known = _Inputs(prompt, object_info, {})
        self._expansion = Expansion()

    def find(self, targets: Sequence[str], field: str) -> tuple[Place, ...]:
        """Return the inputs that targets name. Raises RequestRejected for `field` if one names none."""
        places: dict[Place, None] = {}
        for target in targets:
            found = self._known.find(target)[1]
            if not found:
                raise RequestRejected([replace(self._known.unknown(target), field=field)])
            self._expansion.add_elements(len(found))
            places |= dict.fromkeys(found)
        return tuple(places)


def _unknown_name(name: str, named_inputs: Mapping[str, object]) -> Problem:
    known = list(islice((known for known in named_inputs if len(known) <= MAX_TARGET_LENGTH), MAX_COMPARED))
    shown, nearest = name[:MAX_TARGET_LENGTH], nearest_name(name, known, by_start=True)
    hint = f"; did you mean {nearest}?" if nearest else ""
    message = f"{shown}: the workflow has no input of this name{hint}"
    return Problem(message, f"{INPUTS_FIELD}.{shown}", type="unknown_input", allowed=known)


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
        self._nodes_taking: dict[tuple[str, str], dict[str, list[str]]] = {}
        self._declared: dict[str, list[str]] = {}  # by class
        for node_id in prompt:
            node = object_at(prompt, node_id)
            if isinstance(node.get("inputs"), Mapping):
                self._add(node_id, node)

    def _add(self, node_id: str, node: JsonObject) -> None:
        self._nodes[node_id] = node
        for kind, name in self._names_of(node_id).items():
            self._ids[kind].setdefault(name, []).append(node_id)
        for name, value in object_at(node, "inputs").items():
            if not is_link(value):
                self._with_value.setdefault(name, []).append(Place(node_id, name))

    def find(self, target: str) -> tuple[int, tuple[Place, ...]]:
        """Return the rank of a target, higher for a more specific one, and its inputs; none for an unknown one."""
        if len(target) > MAX_TARGET_LENGTH:
            return 0, ()
        if target.startswith(EVERY):
            return 0, self._every(target.removeprefix(EVERY))
        for rank, kind in ((3, "id"), (2, "title"), (1, "class")):
            for node_name, input_name in _splits(target):
                if node_name not in self._ids[kind]:
                    continue
                places = tuple(Place(node_id, input_name) for node_id in self._taking(kind, node_name, input_name))
                if places:
                    return rank, places
        return 0, ()

    def _taking(self, kind: str, node_name: str, input_name: str) -> Sequence[str]:
        """Return the ids of the nodes of a name that take an input.

        The inputs of the nodes of one name are listed once, whatever the number of targets that begin with it.
        """
        taking = self._nodes_taking.get((kind, node_name))
        if taking is None:
            taking = self._nodes_taking[kind, node_name] = {}
            for node_id in self._ids[kind][node_name]:
                for name in self._inputs_of(node_id):
                    taking.setdefault(name, []).append(node_id)
        return taking.get(input_name, ())

    def _inputs_of(self, node_id: str) -> Iterable[str]:
        """Return the names of the inputs that a node has or that its class declares."""
        node = self._nodes[node_id]
        class_type = str(node.get("class_type"))
        if class_type not in self._declared:
            declared = object_at(self._object_info, class_type, "input")
            self._declared[class_type] = [name for section in SECTIONS for name in object_at(declared, section)]
        return dict.fromkeys((*object_at(node, "inputs"), *self._declared[class_type]))

    def unknown(self, target: str) -> Problem:
        """Return the problem of a target that names no input, with the names that it may have meant."""
        shown = target[:MAX_TARGET_LENGTH]
        names = list(islice(self._names_beside(shown), MAX_COMPARED)) or list(islice(self._names(), MAX_COMPARED))
        nearest = nearest_names(shown, names, limit=MAX_NEAREST) or tuple(names[:MAX_NEAREST])
        message = f"{shown}: no such input in the workflow; expected the node's id, title or class, a dot and the input"
        return Problem(message, f"{FIELD}.{shown}", type="unknown_input", allowed=list(nearest))

    def named(self, name: str) -> tuple[Place, ...]:
        """Return the inputs of a named input that the prompt has."""
        return tuple(place for place in self._named_inputs.get(name, ()) if place.node_id in self._nodes)

    def _every(self, name: str) -> tuple[Place, ...]:
        return self.named(name) or tuple(self._with_value.get(name, ()))

    def _names_of(self, node_id: str) -> dict[str, str]:
        """Return the names of a node by their kind."""
        node = self._nodes[node_id]
        title = object_at(node, "_meta").get("title")
        named = {"id": node_id, "title": title, "class": node.get("class_type")}
        return {kind: name for kind, name in named.items() if isinstance(name, str) and name}

    def _names_beside(self, target: str) -> Iterator[str]:
        """Yield the inputs of the nodes that a target names; none for one that names no node."""
        for node_name, _ in _splits(target):
            for ids in self._ids.values():
                for node_id in ids.get(node_name, ())[:1]:
                    yield from _targets([node_name], object_at(self._nodes[node_id], "inputs"))

    def _names(self) -> Iterator[str]:
        """Yield every name of an input that has a value and that an override may name."""
        yield from (
            f"{EVERY}{name}" for name in (*self._named_inputs, *self._with_value) if len(name) < MAX_TARGET_LENGTH
        )
        for places in self._with_value.values():
            for place in places:
                yield from _targets(self._names_of(place.node_id).values(), [place.input_name])


def _targets(node_names: Iterable[str], input_names: Iterable[str]) -> Iterator[str]:
    """Yield the targets of inputs, without those that no override may name: a long title is not written many times."""
    for node_name in node_names:
        for name in input_names:
            if len(node_name) + len(name) < MAX_TARGET_LENGTH:
                yield f"{node_name}.{name}"


def _splits(target: str) -> Iterator[tuple[str, str]]:
    """Yield each split of a target at a dot: titles and inputs may have dots, too."""
    for index, character in enumerate(target):
        if character == "." and 0 < index < len(target) - 1:
            yield target[:index], target[index + 1 :]
