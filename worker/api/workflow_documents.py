"""Typed routes of stored workflows for the OpenAPI document: one path a workflow, its inputs with types and choices."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable
from typing import Any, Final

from worker.api.stored_workflows import RUN_ROUTES
from worker.json_values import JsonObject, object_at
from worker.workflows.overrides import Place
from worker.workflows.stored import NamedInput, StoredWorkflow

REFERENCE: Final = "#/components/schemas/"
MAX_OVERRIDES: Final = 500  # listed a workflow


def add_typed_routes(document: dict[str, Any], workflows: Iterable[StoredWorkflow], object_info: JsonObject) -> None:
    """Add a path for each stored workflow to a document that has the paths of every one."""
    paths, schemas = document["paths"], document["components"]["schemas"]
    for workflow in workflows:
        key = f"Inputs_{_identifier(workflow.name)}"
        schemas[key] = workflow.schema(object_info) | {"title": key}
        for route in RUN_ROUTES:
            operation = copy.deepcopy(paths[route]["post"])
            operation["operationId"] = f"{operation['operationId']}_{_identifier(workflow.name)}"
            operation["description"] = workflow.description or operation.get("description", "")
            operation["parameters"] = [item for item in operation["parameters"] if item["in"] != "path"]
            operation["requestBody"] = _body(workflow, key, object_info)
            paths[route.replace("{name}", workflow.name)] = {"post": operation}


def _body(workflow: StoredWorkflow, key: str, object_info: JsonObject) -> dict[str, Any]:
    inputs = {"$ref": f"{REFERENCE}{key}"}
    overrides = {"type": "object", "properties": _overrides(workflow, object_info)}
    chosen = {"type": "object", "properties": {"inputs": inputs, "overrides": overrides}}
    whole = {"type": "object", "required": ["input"], "properties": {"input": chosen}, "title": "Request"}
    return {"required": True, "content": {"application/json": {"schema": {"anyOf": [inputs, whole]}}}}


def _overrides(workflow: StoredWorkflow, object_info: JsonObject) -> dict[str, Any]:
    """Return the schemas of the inputs of a workflow that have a value, by `ID.INPUT`."""
    places = [
        Place(node_id, name)
        for node_id in workflow.prompt
        for name, value in object_at(workflow.prompt, node_id, "inputs").items()
        if not isinstance(value, list)
    ]
    named = {place.target: NamedInput((place,)) for place in places[:MAX_OVERRIDES]}
    return {target: workflow.property_of(item, object_info) for target, item in named.items()}


def _identifier(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9]", lambda found: f"_{ord(found[0]):x}_" if found[0] != "_" else "_", name)
