"""GET /docs and /openapi.json: the OpenAPI document, with examples that run unchanged on this machine.

The examples name checkpoints and other files that the engine has, so they are built on request.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from fastapi import APIRouter, Request
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.openapi.utils import get_openapi
from fastapi.responses import FileResponse, HTMLResponse, Response
from starlette.routing import BaseRoute

from darkroom.modifiers.registry import ModifierRegistry
from darkroom.worker.api.document_cache import DocumentCache
from darkroom.worker.api.page_headers import policy_for
from darkroom.worker.api.replies.jobs import StreamEvent
from darkroom.worker.api.results import check_caller, services_of
from darkroom.worker.api.schemas import GenerateRequest
from darkroom.worker.api.workflow_documents import add_typed_routes
from darkroom.worker.engines.choices import choices_in
from darkroom.worker.errors import EngineUnreachable, Forbidden, Unauthorized
from darkroom.worker.json.values import JsonObject
from darkroom.worker.models.demo_model import suited_example
from darkroom.worker.prompts.modifier_defaults import ModifierDefaults, checkpoints_of, find_defaults
from darkroom.worker.storage.stored_workflow import StoredWorkflow
from darkroom.worker.version import version

router = APIRouter(include_in_schema=False)

TITLE = "Darkroom"
SUMMARY = "Images from node graphs: a request is a modifier with a few parameters, or a workflow of your own."
GENERATE_ROUTES = ("/generate", "/generate/sync", "/generate/stream")
SCRIPT, STYLE, ICON = "swagger-ui-bundle.js", "swagger-ui.css", "favicon-32x32.png"
OWN_WORKFLOW = "A workflow of your own"
DRAWN_FIRST = "Text2Image"
REFERENCE = "#/components/schemas/{model}"
FRAMEWORK_ERROR = "HTTPValidationError"
GENERATE_FORM = {
    "type": "object",
    "title": "GenerateForm",
    "description": "A request and its files, each in a part whose name is the value of the input that takes it.",
    "properties": {"input": {"type": "string", "description": "The JSON body."}},
    "additionalProperties": {"type": "string", "format": "binary"},
    "required": ["input"],
}
TAGS = {
    "generate": "Create a job: a modifier with a few parameters, or a workflow of your own.",
    "jobs": "Results, streams, outputs and cancellation of jobs.",
    "workflows": "Workflows kept under a name, each with a typed route.",
    "worker": "Probes, metrics, modifiers and the benchmark.",
    "webhooks": "The outbox of webhooks, for operators.",
    "Comfy API v2": "Assets, jobs and events in the format of the Comfy API v2.",
    "Comfy Cloud API": "ComfyUI's own routes below `/api`, as Comfy Cloud has them.",
    "OpenAI's form": "OpenAI's images API over the modifiers.",
    "RunPod's form": "RunPod's request and reply formats.",
}


@router.get("/docs", response_class=HTMLResponse)
async def docs(request: Request) -> HTMLResponse:
    """Return Swagger UI for the document."""
    prefix = str(request.scope.get("root_path", "")).rstrip("/")
    page = get_swagger_ui_html(
        openapi_url=f"{prefix}/openapi.json",
        title=f"{TITLE} API",
        swagger_js_url=f"{prefix}/docs/{SCRIPT}",
        swagger_css_url=f"{prefix}/docs/{STYLE}",
        swagger_favicon_url=f"{prefix}/docs/{ICON}",
    )
    page.headers["Content-Security-Policy"] = policy_for(bytes(page.body).decode(), has_inline_styles=True)
    return page


@router.get("/docs/{name}", response_class=FileResponse)
async def part_of_docs(name: Literal["swagger-ui-bundle.js", "swagger-ui.css", "favicon-32x32.png"]) -> FileResponse:
    """Return a file of Swagger UI from this machine: neither the worker nor the browser needs the Internet."""
    return FileResponse(
        Path(str(files("fastapi_swagger.resources") / name)), headers={"Cache-Control": "max-age=86400"}
    )


@router.get("/openapi.json")
async def openapi(request: Request) -> Response:
    """Return the document of the API; it changes with what the engine has."""
    services, app = services_of(request), request.app
    engine, registry = services.engines.pool.any_client, services.requests.modifiers
    object_info: JsonObject | None = None
    try:
        found = await engine.object_info()
        modifications = _drawn_first(registry, found)
        defaults = await find_defaults(engine, registry, checkpoints_of(found), DRAWN_FIRST, modifications)
        object_info = found
    except EngineUnreachable:
        defaults = ModifierDefaults()

    revision, stored = services.files.workflows.revision, await _stored_workflows(request)

    def make() -> dict[str, object]:
        examples = {} if object_info is None else examples_of(registry, object_info, defaults)
        document = _document(app.routes, examples)
        add_typed_routes(document, stored or (), object_info or {})
        return document

    kept: DocumentCache = app.state.openapi if stored is None else app.state.openapi_of_callers
    return await kept.reply(request, (object_info, revision), make)


async def _stored_workflows(request: Request) -> list[StoredWorkflow] | None:
    """Return the stored workflows for a caller who may read them; None for any other, who sees the routes alone."""
    try:
        check_caller(request)
    except (Unauthorized, Forbidden):
        return None
    return await services_of(request).files.workflows.newest()


def _document(routes: Sequence[BaseRoute], examples: dict[str, dict[str, object]]) -> dict[str, Any]:
    document = get_openapi(title=TITLE, version=version(), description=SUMMARY, routes=routes)
    for path in GENERATE_ROUTES:
        document["paths"][path]["post"]["requestBody"] = _request_body(examples)
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    about = "A key of API_KEYS, where the worker has any"
    document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer", "description": about}}
    document["security"] = [{"key": []}, {}]  # /docs then accepts a key, and requires none
    document["tags"] = [{"name": name, "description": text} for name, text in TAGS.items()]
    for model in (GenerateRequest, StreamEvent):
        schema = model.model_json_schema(ref_template=REFERENCE)
        schemas |= {**schema.pop("$defs"), model.__name__: schema}
    schemas["GenerateForm"] = GENERATE_FORM
    _forget_framework_errors(document)
    return document


def _forget_framework_errors(document: dict[str, Any]) -> None:
    """Remove the framework's own form of a refusal, which no route sends."""
    for operations in document["paths"].values():
        for operation in operations.values():
            if FRAMEWORK_ERROR in str(operation["responses"].get("422")):
                del operation["responses"]["422"]
    for name in (FRAMEWORK_ERROR, "ValidationError"):
        document["components"]["schemas"].pop(name, None)


def examples_of(
    modifiers: ModifierRegistry, object_info: JsonObject, defaults: ModifierDefaults
) -> dict[str, dict[str, object]]:
    """Return request bodies by name: one per modifier whose files this engine has, and one with a whole workflow.

    `defaults` are those of the modifier that builds the workflow.
    """
    checkpoints = checkpoints_of(object_info)
    examples = modifiers.examples(choices_in(object_info)).items()
    made: dict[str, dict[str, Any]] = {
        name: {"input": {"modifier": name, "modifications": suited_example(modifications, checkpoints)}}
        for name, modifications in examples
    }
    if DRAWN_FIRST in made:
        workflow = defaults.build(modifiers, DRAWN_FIRST, made[DRAWN_FIRST]["input"]["modifications"])
        made[OWN_WORKFLOW] = {"input": {"workflow_json": workflow, "return_outputs_as_base64": True}}
    return made


def _drawn_first(modifiers: ModifierRegistry, object_info: JsonObject) -> dict[str, object]:
    """Return the example of the modifier that builds the workflow; empty where the engine lacks its files."""
    examples = modifiers.examples(choices_in(object_info))
    return suited_example(examples.get(DRAWN_FIRST, {}), checkpoints_of(object_info))


def _request_body(examples: dict[str, dict[str, object]]) -> dict[str, object]:
    schema = {"$ref": REFERENCE.format(model=GenerateRequest.__name__)}
    shown = {name: {"summary": name, "value": body} for name, body in examples.items()}
    return {
        "required": True,
        "content": {
            "application/json": {"schema": schema, **({"examples": shown} if shown else {})},
            "multipart/form-data": {"schema": {"$ref": REFERENCE.format(model="GenerateForm")}},
        },
    }
