"""A workflow that is kept under a name: its document, its named inputs and outputs, and their JSON schema. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from contract.graph.spec import InputSpec
from worker.json.values import JsonObject, object_at
from worker.prompts.workflows.widgets import SEED_NAMES, read_class
from worker.storage.stored_workflow import Place

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
NAME_RULE: Final = "1 to 128 letters, digits and . _ -, a letter or digit first"
REFERENCE: Final = re.compile(rf"(?P<name>{NAME.pattern})(@(?P<version>[1-9][0-9]{{0,8}}))?")
RANDOM_INT: Final = "__RANDOM_INT__"
TYPES: Final[Mapping[str, str]] = {"INT": "integer", "FLOAT": "number", "STRING": "string", "BOOLEAN": "boolean"}
BOUNDS: Final[Mapping[str, str]] = {"min": "minimum", "max": "maximum"}
MAX_CHOICES: Final = 1000


@dataclass(frozen=True, slots=True)
class NamedInput:
    """Inputs of the prompt that one name sets."""

    places: tuple[Place, ...]
    description: str = ""


@dataclass(frozen=True, slots=True)
class StoredWorkflow:
    """One version of a workflow. `document` is as it was sent, `prompt` the API format of it at that time."""

    name: str
    version: int
    document: JsonObject
    prompt: JsonObject
    created_ms: int
    description: str = ""
    inputs: Mapping[str, NamedInput] = field(default_factory=dict)
    outputs: tuple[str, ...] = ()

    @property
    def reference(self) -> str:
        return f"{self.name}@{self.version}"

    @property
    def places(self) -> dict[str, tuple[Place, ...]]:
        return {name: named.places for name, named in self.inputs.items()}

    def content(self) -> dict[str, Any]:
        """Return what is stored of a version besides its name, number and time, as JSON."""
        inputs = {
            name: {"places": [[place.node_id, place.input_name] for place in named.places], "about": named.description}
            for name, named in self.inputs.items()
        }
        return {
            "document": self.document,
            "prompt": self.prompt,
            "description": self.description,
            "inputs": inputs,
            "outputs": list(self.outputs),
        }

    @staticmethod
    def of(name: str, version: int, created_ms: int, content: Mapping[str, Any]) -> StoredWorkflow:
        """Return the version that `content` describes."""
        inputs = {
            key: NamedInput(tuple(Place(*place) for place in item["places"]), item["about"])
            for key, item in content["inputs"].items()
        }
        return StoredWorkflow(
            name,
            version,
            content["document"],
            content["prompt"],
            created_ms,
            content["description"],
            inputs,
            tuple(content["outputs"]),
        )

    def schema(self, object_info: JsonObject) -> dict[str, Any]:
        """Return the JSON schema of the named inputs, by the engine's declarations; the defaults are the workflow's."""
        properties = {
            name: self.property_of(named, object_info)
            | ({"description": named.description} if named.description else {})
            for name, named in self.inputs.items()
        }
        return {"type": "object", "properties": properties, "additionalProperties": False}

    def property_of(self, named: NamedInput, object_info: JsonObject) -> dict[str, Any]:
        """Return the JSON schema of one named input, by the first place that it sets."""
        place = named.places[0]
        node = object_at(self.prompt, place.node_id)
        spec = read_class(str(node.get("class_type")), object_info)
        item = next((item for item in spec.inputs if item.name == place.input_name), None) if spec else None
        found = {} if item is None else schema_of(item)
        value = object_at(node, "inputs").get(place.input_name)
        is_link = isinstance(value, list)
        return found if value is None or is_link else found | {"default": value}


def schema_of(item: InputSpec) -> dict[str, Any]:
    """Return the JSON schema of the values that an input takes; empty for one of no plain type."""
    options = item.options
    described = {"description": options["tooltip"]} if isinstance(options.get("tooltip"), str) else {}
    if item.choices is not None:
        is_short = len(item.choices) <= MAX_CHOICES and not item.is_open
        return described | ({"enum": list(item.choices)} if is_short else {"type": "string"})
    kind = TYPES.get(str(item.type))
    if kind is None:
        return described
    bounds = {key: options[name] for name, key in BOUNDS.items() if isinstance(options.get(name), int | float)}
    plain = {"type": kind, **(bounds if kind in ("integer", "number") else {})}
    if kind == "integer" and item.name in SEED_NAMES:
        return described | {"anyOf": [plain, {"const": RANDOM_INT}]}
    return described | plain
