"""JSON schema of a stored workflow's named inputs, by the engine's declarations. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from darkroom.contract.graph.spec import InputSpec
from darkroom.worker.json.values import JsonObject, object_at
from darkroom.worker.prompts.workflows.widgets import SEED_NAMES, read_class
from darkroom.worker.storage.stored_workflow import NamedInput, StoredWorkflow

RANDOM_INT: Final = "__RANDOM_INT__"
TYPES: Final[Mapping[str, str]] = {"INT": "integer", "FLOAT": "number", "STRING": "string", "BOOLEAN": "boolean"}
BOUNDS: Final[Mapping[str, str]] = {"min": "minimum", "max": "maximum"}
MAX_CHOICES: Final = 1000


def schema_of_inputs(workflow: StoredWorkflow, object_info: JsonObject) -> dict[str, Any]:
    """Return the JSON schema of the named inputs, by the engine's declarations; the defaults are the workflow's."""
    properties = {
        name: _property_of(workflow, named, object_info)
        | ({"description": named.description} if named.description else {})
        for name, named in workflow.inputs.items()
    }
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _property_of(workflow: StoredWorkflow, named: NamedInput, object_info: JsonObject) -> dict[str, Any]:
    """Return the JSON schema of one named input, by the first place that it sets."""
    place = named.places[0]
    node = object_at(workflow.prompt, place.node_id)
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
