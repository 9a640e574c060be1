"""Form of a workflow: every input of its nodes that has a value, with its role, its label and what it takes. Pure.

Prompts are told from negative prompts by the links: a text that reaches a node's `negative` input, and its `positive`
input on no way, is a negative one. Other roles are read from what a node declares, and from the names of its inputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from darkroom.contract.graph.facts import Facts
from darkroom.contract.graph.model_inputs import ModelInputs
from darkroom.contract.graph.prompt import is_link
from darkroom.contract.graph.spec import InputSpec, NodeSpec
from darkroom.worker.inputs.references import media_of
from darkroom.worker.json.values import JsonObject, object_at
from darkroom.worker.prompts.workflows.stored import MAX_CHOICES, schema_of
from darkroom.worker.prompts.workflows.widgets import SEED_NAMES, read_class
from darkroom.worker.storage.stored_workflow import Place

Role = Literal[
    "file", "prompt", "negative_prompt", "width", "height", "length", "batch_size", "steps", "seed", "model", "other"
]
Polarity = Literal["positive", "negative"]

POLARITIES: Final[tuple[Polarity, Polarity]] = ("positive", "negative")
SIZES: Final[Mapping[str, Role]] = {
    "width": "width",
    "height": "height",
    "length": "length",
    "num_frames": "length",
    "batch_size": "batch_size",
    "steps": "steps",
}
"""Roles of whole numbers by the names of their inputs."""

ORDER: Final[tuple[Role, ...]] = (
    *("file", "prompt", "negative_prompt", "width", "height", "length", "batch_size", "steps", "seed", "model"),
    "other",
)
FOLDED: Final[frozenset[Role]] = frozenset({"batch_size", "model", "other"})
MAX_FIELDS: Final = 1000
MEDIA_TYPES: Final[Mapping[str, str]] = {
    "image_upload": "image/*",
    "animated_image_upload": "image/*",
    "video_upload": "video/*",
    "audio_upload": "audio/*",
}
ANY_FILE: Final = "*/*"
MAX_EXACT: Final = 2**53 - 1


@dataclass(frozen=True, slots=True)
class FormField:
    """One input of a node. `schema` is the JSON schema of its values, with the workflow's as the default.

    `choices` names the entry of the form's choices that it takes; empty for an input that is no choice.
    """

    place: Place
    class_type: str
    title: str
    label: str
    role: Role
    schema: Mapping[str, Any]
    choices: str = ""
    folder: str = ""
    """Folder below `models/` of the file that it names; empty for another input."""

    is_main: bool = True
    """False: folded in, below the fields that most people change."""

    also: tuple[Place, ...] = ()
    """Further inputs that its value is for: those of prompts with the same text."""

    def as_json(self) -> dict[str, Any]:
        return {
            "target": self.place.target,
            "also": [place.target for place in self.also],
            "node_id": self.place.node_id,
            "input": self.place.input_name,
            "class_type": self.class_type,
            "title": self.title,
            "label": self.label,
            "role": self.role,
            "schema": dict(self.schema),
            "choices": self.choices,
            "folder": self.folder,
            "is_main": self.is_main,
        }


@dataclass(frozen=True, slots=True)
class WorkflowForm:
    """Fields of a workflow in the order of a form. `choices` are those of all fields, by class and input.

    `num_left_out` counts the inputs beyond MAX_FIELDS.
    """

    fields: tuple[FormField, ...] = ()
    choices: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    num_left_out: int = 0

    def as_json(self) -> dict[str, Any]:
        return {
            "fields": [item.as_json() for item in self.fields],
            "choices": {name: list(values) for name, values in self.choices.items()},
            "num_left_out": self.num_left_out,
        }


def form_of(
    prompt: JsonObject, object_info: JsonObject, named: Mapping[str, tuple[Place, ...]] | None = None
) -> WorkflowForm:
    """Return the form of a prompt in API format; `named` are the inputs of its page's app mode, which come first."""
    reading = _Reading(prompt, object_info)
    chosen = {places[0]: name for name, places in (named or {}).items() if places}
    found = _merged([item for node_id in prompt for item in reading.fields(node_id, chosen)], named or {})
    rank = {place: number for number, place in enumerate(chosen)}
    found.sort(key=lambda item: (not item.is_main, rank.get(item.place, len(rank)), ORDER.index(item.role)))
    kept = found[:MAX_FIELDS]
    used = {item.choices for item in kept}
    choices = {name: values for name, values in reading.choices.items() if name in used}
    return WorkflowForm(tuple(kept), choices, len(found) - len(kept))


def _merged(fields: Sequence[FormField], named: Mapping[str, tuple[Place, ...]]) -> list[FormField]:
    """Return the fields with those of one text in one: of an app mode's input, of prompts that are the same.

    Networks with several text encoders, and refiners, get the same prompt by several nodes.
    """
    first: dict[object, Place] = {}
    names = {place: name for name, places in named.items() for place in places}
    also: dict[Place, list[Place]] = {}
    for item in fields:
        name = names.get(item.place)
        is_text = item.role in ("prompt", "negative_prompt")
        same: object = name or (item.role, item.schema["default"]) if name or (is_text and not named) else item.place
        place = first.setdefault(same, named[name][0] if name else item.place)
        if place != item.place:
            also.setdefault(place, []).append(item.place)
    others = {place for places in also.values() for place in places}
    return [replace(item, also=tuple(also.get(item.place, ()))) for item in fields if item.place not in others]


class _Reading:
    """Nodes of one prompt and the declarations of their classes, each read once."""

    def __init__(self, prompt: JsonObject, object_info: JsonObject) -> None:
        self.choices: dict[str, tuple[Any, ...]] = {}
        self._prompt = prompt
        self._object_info = object_info
        self._facts = Facts(object_info)
        self._models = ModelInputs(self._facts, object_info)
        self._specs: dict[str, NodeSpec | None] = {}
        self._polarities = polarities_of(prompt)

    def fields(self, node_id: str, chosen: Mapping[Place, str]) -> Iterator[FormField]:
        """Yield the fields of a node, in the order of its declaration; none of a class that the engine lacks."""
        node = object_at(self._prompt, node_id)
        class_type, values = str(node.get("class_type")), object_at(node, "inputs")
        spec = self._spec(class_type)
        if spec is None:
            return
        declared = {item.name: item for item in spec.inputs if item.section != "hidden"}
        given = object_at(node, "_meta").get("title")
        usual = spec.display_name or class_type
        is_titled = isinstance(given, str) and given not in ("", usual, class_type)
        title = str(given) if is_titled else usual
        for name in (*(name for name in declared if name in values), *(key for key in values if key not in declared)):
            value = values[name]
            if is_link(value) or isinstance(value, dict | list) or value is None:
                continue
            item = declared.get(name) or InputSpec(name, _type_of(value))
            place = Place(node_id, name)
            yield self._field(place, class_type, title, is_titled, item, value, chosen)

    def _field(
        self,
        place: Place,
        class_type: str,
        title: str,
        is_titled: bool,
        item: InputSpec,
        value: object,
        chosen: Mapping[Place, str],
    ) -> FormField:
        media = media_of(self._object_info, self._facts, class_type, item.name)
        folder = self._models.folders_of(class_type).get(item.name, "")
        role = self._role(place.node_id, item, media is not None, bool(folder))
        schema = _schema(item, value) | ({} if media is None else {"contentMediaType": _media_type(item)})
        is_main = place in chosen if chosen else role not in FOLDED
        label = chosen.get(place) or _label(role, title, is_titled, item.name)
        return FormField(
            place, class_type, title, label, role, schema, self._choices(class_type, item), folder, is_main
        )

    def _choices(self, class_type: str, item: InputSpec) -> str:
        """Note the choices of an input, and return the name that they have; empty for an input without any."""
        if not item.choices:
            return ""
        name = f"{class_type}.{item.name}"
        if name not in self.choices:
            self.choices[name] = tuple(one for one in item.choices[:MAX_CHOICES] if isinstance(one, str | int | float))
        return name

    def _role(self, node_id: str, item: InputSpec, takes_file: bool, is_model: bool) -> Role:
        if takes_file:
            return "file"
        if is_model:
            return "model"
        if item.type == "STRING" and item.options.get("multiline"):
            found = self._polarities.get(node_id, frozenset())
            return "negative_prompt" if found == {"negative"} else "prompt"
        if item.type == "INT" and item.name in SEED_NAMES:
            return "seed"
        return SIZES.get(item.name, "other") if item.type == "INT" else "other"

    def _spec(self, class_type: str) -> NodeSpec | None:
        if class_type not in self._specs:
            self._specs[class_type] = read_class(class_type, self._object_info)
        return self._specs[class_type]


def polarities_of(prompt: JsonObject) -> Mapping[str, frozenset[Polarity]]:
    """Return the inputs, `positive` and `negative`, that each node's outputs reach, by node id.

    A node that has both inputs, as those of ControlNets do, passes the first on as its output 0 and the second as 1.
    Every node is visited at most once for each.
    """
    found: dict[str, set[Polarity]] = {}
    waiting: list[tuple[str, Polarity, float]] = []
    for node_id in prompt:
        inputs = object_at(prompt, node_id, "inputs")
        for polarity in POLARITIES:
            waiting += _sources([inputs.get(polarity)], polarity)
    while waiting:
        node_id, polarity, output = waiting.pop()
        seen = found.setdefault(node_id, set())
        if polarity in seen:
            continue
        seen.add(polarity)
        inputs = object_at(prompt, node_id, "inputs")
        if all(name in inputs for name in POLARITIES):
            waiting += _sources([inputs["negative" if output == 1 else "positive"]], polarity)
        else:
            waiting += _sources(inputs.values(), polarity)
    return {node_id: frozenset(polarities) for node_id, polarities in found.items()}


def _sources(values: Iterable[object], polarity: Polarity) -> Iterator[tuple[str, Polarity, float]]:
    for value in values:
        if is_link(value):
            yield value[0], polarity, value[1]


def _label(role: Role, title: str, is_titled: bool, name: str) -> str:
    """Return the label of a field: its node's title where that is the author's and the field its main one."""
    if role in ("prompt", "negative_prompt", "file") and is_titled:
        return title
    plain = {"negative_prompt": "negative prompt", "prompt": "prompt"}.get(role, name)
    return plain.replace("_", " ").strip().capitalize()[:100]


def _schema(item: InputSpec, value: object) -> dict[str, Any]:
    """Return the JSON schema of a field; its choices are the form's.

    A whole number that a double does not hold is given as its digits, since JavaScript would round it.
    """
    schema = {key: found for key, found in schema_of(item).items() if key != "enum"}
    is_exact = not isinstance(value, int) or isinstance(value, bool) or abs(value) <= MAX_EXACT
    schema["default"] = value if is_exact else str(value)
    if item.options.get("multiline"):
        schema["isMultiline"] = True
    if item.type in ("INT", "FLOAT") and isinstance(item.options.get("step"), int | float):
        schema["step"] = item.options["step"]
    return schema


def _media_type(item: InputSpec) -> str:
    return next((MEDIA_TYPES[key] for key in MEDIA_TYPES if item.options.get(key)), ANY_FILE)


def _type_of(value: object) -> str:
    if isinstance(value, bool):
        return "BOOLEAN"
    return "INT" if isinstance(value, int) else "FLOAT" if isinstance(value, float) else "STRING"
