"""A workflow that is kept under a name: its document, its prompt, and its named inputs and outputs. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from darkroom.worker.json.values import JsonObject

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
NAME_RULE: Final = "1 to 128 letters, digits and . _ -, a letter or digit first"
REFERENCE: Final = re.compile(rf"(?P<name>{NAME.pattern})(@(?P<version>[1-9][0-9]{{0,8}}))?")


@dataclass(frozen=True, slots=True)
class Place:
    """Input of a node of a prompt."""

    node_id: str
    input_name: str

    @property
    def target(self) -> str:
        return f"{self.node_id}.{self.input_name}"


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
        """Return the stored content of a version besides its name, number and time, as JSON."""
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
