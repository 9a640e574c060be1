"""Nodes, links and classes of a prompt as data: what runs, literal numbers, model files. Pure.

What a class means it declares itself (`facts.py`); of a class that declares nothing the names of its inputs are read.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from darkroom.contract.graph.facts import FACTS_KEY, NO_FACTS, Facts, NodeFacts
from darkroom.contract.graph.model_inputs import NETWORK_FOLDERS, ModelInputs
from darkroom.contract.graph.prompt import reached
from darkroom.contract.graph.switches import NOTHING_LEFT_OUT, LeftOut, find_left_out, inputs_of, without_left_out

JsonObject = Mapping[str, object]

MOST: Final = 1e9  # upper bound of any number, far above every limit
PRIMITIVE_INPUTS: Final = ("value", "int", "float", "number", "Number", "string")

FAMILY_KIND: Final = "family"
"""The `kind` of a `ModelFile` without a file: random weights of the family with that name."""


def object_of(value: object) -> JsonObject:
    """Return a JSON object as it is, an empty one for any other value."""
    return value if type(value) is dict or isinstance(value, Mapping) else {}


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A model file by its kind and its name below the folder of that kind."""

    kind: str
    name: str


class PromptGraph:
    """Nodes, links and classes of a prompt in ComfyUI's API form; `object_info` declares the classes, where known.

    Links that no switch follows are not among its inputs and links, and `left_out` are the nodes that do not run for it
    (`switches.py`); for an engine that checks these as ComfyUI does, there are none.
    """

    def __init__(self, prompt: JsonObject, object_info: JsonObject | None = None) -> None:
        self.prompt = prompt
        self.object_info: JsonObject = object_info or {}
        self.facts = Facts(object_info)
        self._model_inputs = ModelInputs(self.facts, self.object_info)
        self._numbers: dict[str, float | None] = {}  # values of primitive nodes

    def class_of(self, node_id: str) -> str:
        """Return the class of a node, empty where it names none."""
        return str(object_of(self.prompt.get(node_id)).get("class_type") or "")

    def inputs(self, node_id: str | None) -> JsonObject:
        inputs = object_of(object_of(self.prompt.get(node_id or "")).get("inputs"))
        unused = self._unused_inputs.get(node_id or "")
        return inputs if not unused else {name: value for name, value in inputs.items() if name not in unused}

    @property
    def node_ids(self) -> Iterator[str]:
        """The nodes that a switch does not leave out, in the prompt's order."""
        return (node_id for node_id in self.prompt if node_id not in self.left_out)

    def declared(self, node_id: str) -> JsonObject:
        """Return the entry of a node's class in `/object_info`, empty for an undeclared class."""
        return object_of(self.object_info.get(self.class_of(node_id)))

    def facts_of(self, node_id: str | None) -> NodeFacts:
        return self.facts.of(self.class_of(node_id or ""))

    def loaded_by(self, node_id: str) -> ModelFile | None:
        """Return the model file that a node loads a denoising network from; of random weights, their family."""
        inputs, random_family = self.inputs(node_id), self.facts_of(node_id).random_family
        if random_family:
            return _named_file(FAMILY_KIND, inputs.get(random_family))
        for name, folder in self._model_inputs.folders_of(self.class_of(node_id)).items():
            kind = NETWORK_FOLDERS.get(folder)
            if kind is not None and (file := _named_file(kind, inputs.get(name))) is not None:
                return file
        return None

    @cached_property
    def model_files(self) -> tuple[ModelFile, ...]:
        """The model files of denoising networks that the prompt names, each once."""
        found = map(self.loaded_by, self.node_ids)
        return tuple(dict.fromkeys(file for file in found if file is not None))

    def linked(self, value: object) -> str | None:
        """Return the node that a link refers to; None for any other value, and for a link to no node."""
        if type(value) is not list or len(value) != 2 or not isinstance(value[0], str | int):
            return None
        node_id = str(value[0])
        return node_id if node_id in self.prompt else None

    def sources(self, node_id: str) -> Iterator[str]:
        """Yield the nodes that a node's inputs are linked to."""
        for value in self.inputs(node_id).values():
            source = self.linked(value)
            if source is not None:
                yield source

    def is_output(self, node_id: str) -> bool:
        return bool(self.declared(node_id).get("output_node"))

    def needed_by(self, targets: Iterable[str]) -> frozenset[str]:
        """Return the nodes that run for the targets, these among them."""
        return reached(targets, self.sources)

    def below(self, root: str) -> frozenset[str]:
        """Return the nodes that depend on a node."""
        users: dict[str, list[str]] = {}
        for node_id in self.node_ids:
            for source in self.sources(node_id):
                users.setdefault(source, []).append(node_id)
        return reached(users.get(root, ()), lambda node_id: users.get(node_id, ()))

    def running_part(self) -> dict[str, object]:
        """Return the nodes that an output node needs, directly or not; the others do not run."""
        needed = self.needed_by(node_id for node_id in self.prompt if self.is_output(node_id))
        return {node_id: node for node_id, node in self.prompt.items() if node_id in needed}

    @property
    def followed(self) -> JsonObject:
        """The prompt without the nodes that a switch leaves out and the links to them."""
        return without_left_out(self.prompt, self._switched)

    def possible_part(self) -> dict[str, object]:
        """Return the nodes that a switch does not leave out."""
        return {node_id: self.prompt[node_id] for node_id in self.node_ids}

    @property
    def left_out(self) -> frozenset[str]:
        """The nodes that switches leave out."""
        return self._switched.nodes

    @cached_property
    def _switched(self) -> LeftOut:
        if not any(self._switch_facts(name).chosen_by for name in self._classes):
            return NOTHING_LEFT_OUT
        outputs = {node_id for node_id in self.prompt if self.is_output(node_id)}
        return find_left_out(
            inputs_of(self.prompt), lambda node_id: self._switch_facts(self.class_of(node_id)), outputs
        )

    @cached_property
    def _unused_inputs(self) -> Mapping[str, Collection[str]]:
        """The inputs with links that no switch follows, by node."""
        found: dict[str, set[str]] = {}
        for node_id, name in self._switched.links:
            found.setdefault(node_id, set()).add(name)
        return found

    @property
    def has_loops(self) -> bool:
        """True if a class of the prompt starts or ends loops."""
        return any(self.facts.of(name).loop for name in self._classes)

    @cached_property
    def _classes(self) -> frozenset[str]:
        return frozenset(map(self.class_of, self.prompt))

    def _switch_facts(self, class_type: str) -> NodeFacts:
        """Return the facts of a class that leave out nodes; none for an engine that does not report its facts."""
        declared = object_of(self.object_info.get(class_type))
        return self.facts.of(class_type) if not self.object_info or FACTS_KEY in declared else NO_FACTS

    def types_of(self, node_id: str) -> list[object] | None:
        """Return the types of a node's outputs; None for an undeclared class."""
        types = self.declared(node_id).get("output")
        return types if isinstance(types, list) else None

    def gives(self, node_id: str, types: Collection[str], slot: object = None) -> bool:
        """Return True for a node with an output of these types, or with one in that slot; undeclared classes count."""
        own = self.types_of(node_id)
        if own is None:
            return True
        if isinstance(slot, int) and 0 <= slot < len(own):
            own = [own[slot]]
        return any(isinstance(item, str) and not set(item.split(",")).isdisjoint(types) for item in own)

    def number(self, value: object) -> float | None:
        """Return a literal number, or that of a primitive node upstream; None if there is none or it is unknown.

        Of a node that returns a number up to that of an input it is the latter.
        """
        passed: dict[str, None] = {}
        while (node_id := self.linked(value)) is not None:
            if node_id in self._numbers:
                value = self._numbers[node_id]
                break
            if node_id in passed:
                value = None
                break
            passed[node_id] = None
            inputs = self.inputs(node_id)
            name = (
                self._switched.chosen.get(node_id)
                or self.facts.of(self.class_of(node_id)).bounded_by
                or next((name for name in PRIMITIVE_INPUTS if name in inputs), None)
            )
            value = inputs.get(name) if name is not None else next(iter(inputs.values())) if len(inputs) == 1 else None
        number = _finite(value)
        self._numbers.update(dict.fromkeys(passed, number))
        return number


def _named_file(kind: str, value: object) -> ModelFile | None:
    return ModelFile(kind, value) if isinstance(value, str) and value else None


def model_files_in(prompt: JsonObject, object_info: JsonObject | None = None) -> list[ModelFile]:
    """Return the model files of denoising networks that a prompt in ComfyUI's API form names, each once."""
    return list(PromptGraph(prompt, object_info).model_files)


def _finite(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return min(max(number, -MOST), MOST) if math.isfinite(number) else None
