"""Typed routes of stored workflows for the OpenAPI document: a path a workflow, its inputs with types and choices.

Nothing else of a workflow is shown: its document is the operator's.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable
from typing import Any, Final

from darkroom.worker.api.stored_workflows import RUN_ROUTES
from darkroom.worker.json.values import JsonObject
from darkroom.worker.prompts.workflows.stored import schema_of_inputs
from darkroom.worker.storage.stored_workflow import StoredWorkflow

REFERENCE: Final = "#/components/schemas/"


def add_typed_routes(document: dict[str, Any], workflows: Iterable[StoredWorkflow], object_info: JsonObject) -> None:
    """Add a path for each stored workflow to a document that has the paths of every one."""
    paths, schemas = document["paths"], document["components"]["schemas"]
    for workflow in workflows:
        key = f"Inputs_{_identifier(workflow.name)}"
        schemas[key] = schema_of_inputs(workflow, object_info) | {"title": key}
        for route in RUN_ROUTES:
            operation = copy.deepcopy(paths[route]["post"])
            operation["operationId"] = f"{operation['operationId']}_{_identifier(workflow.name)}"
            operation["description"] = workflow.description or operation.get("description", "")
            operation["parameters"] = [item for item in operation["parameters"] if item["in"] != "path"]
            operation["requestBody"] = _body(key)
            paths[route.replace("{name}", workflow.name)] = {"post": operation}


def _body(key: str) -> dict[str, Any]:
    inputs = {"$ref": f"{REFERENCE}{key}"}
    overrides = {"type": "object", "description": "Values by `ID.INPUT` and the like, which win over `inputs`."}
    chosen = {"type": "object", "properties": {"inputs": inputs, "overrides": overrides}}
    whole = {"type": "object", "required": ["input"], "properties": {"input": chosen}, "title": "Request"}
    return {"required": True, "content": {"application/json": {"schema": {"anyOf": [inputs, whole]}}}}


def _identifier(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9]", lambda found: f"_{ord(found[0]):x}_" if found[0] != "_" else "_", name)
