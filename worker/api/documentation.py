"""GET /docs, /openapi.json and /: the API as a document whose examples run as they stand on this machine.

The examples name checkpoints and other files that the engine has, so they are made when they are asked for.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from fastapi import APIRouter, Request
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.openapi.utils import get_openapi
from fastapi.responses import FileResponse, HTMLResponse

from modifiers.modifier import Choices
from modifiers.registry import ModifierRegistry
from worker.api.results import services_of
from worker.api.schemas import GenerateRequest
from worker.demo_model import defaults_among, suited_example
from worker.engine.choices import choices_in
from worker.errors import EngineUnreachable

router = APIRouter(include_in_schema=False)

TITLE = "Darkroom"
SUMMARY = "Images from node graphs: a request is a modifier with a few parameters, or a workflow of your own."
GENERATE_ROUTES = ("/generate", "/generate/sync", "/generate/stream")
SCRIPT, STYLE, ICON = "swagger-ui-bundle.js", "swagger-ui.css", "favicon-32x32.png"
OWN_WORKFLOW = "A workflow of your own"


@router.get("/", response_class=HTMLResponse)
async def index() -> str:
    return (files("worker.api") / "index.html").read_text(encoding="utf-8")


@router.get("/docs", response_class=HTMLResponse)
async def docs(request: Request) -> HTMLResponse:
    prefix = str(request.scope.get("root_path", "")).rstrip("/")
    return get_swagger_ui_html(
        openapi_url=f"{prefix}/openapi.json",
        title=f"{TITLE} API",
        swagger_js_url=f"{prefix}/docs/{SCRIPT}",
        swagger_css_url=f"{prefix}/docs/{STYLE}",
        swagger_favicon_url=f"{prefix}/docs/{ICON}",
    )


@router.get("/docs/{name}", response_class=FileResponse)
async def part_of_docs(name: Literal["swagger-ui-bundle.js", "swagger-ui.css", "favicon-32x32.png"]) -> FileResponse:
    """From this machine: a worker and who looks at it need no Internet."""
    return FileResponse(
        Path(str(files("fastapi_swagger.resources") / name)), headers={"Cache-Control": "max-age=86400"}
    )


@router.get("/openapi.json")
async def openapi(request: Request) -> dict[str, Any]:
    services = services_of(request)
    try:
        examples = examples_of(services.modifiers, choices_in(await services.pool.any_client.object_info()))
    except EngineUnreachable:
        examples = {}
    document = get_openapi(title=TITLE, version="1", description=SUMMARY, routes=request.app.routes)
    for path in GENERATE_ROUTES:
        document["paths"][path]["post"]["requestBody"] = _request_body(examples)
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    document["security"] = [{"key": []}, {}]  # /docs then takes a key, and asks for none
    schemas |= GenerateRequest.model_json_schema(ref_template="#/components/schemas/{model}").pop("$defs")
    return document


def examples_of(modifiers: ModifierRegistry, choices: Choices) -> dict[str, dict[str, Any]]:
    """Name -> request body, one for each modifier that this engine has the files for, and one with a whole workflow."""
    made: dict[str, dict[str, Any]] = {}
    checkpoints = choices("CheckpointLoaderSimple", "ckpt_name") or ()
    for name, modifications in modifiers.examples(choices).items():
        made[name] = {"input": {"modifier": name, "modifications": suited_example(modifications, checkpoints)}}
    if "Text2Image" in made:
        asked = made["Text2Image"]["input"]["modifications"]
        workflow = modifiers.build("Text2Image", asked, defaults_among(checkpoints, asked))
        made[OWN_WORKFLOW] = {"input": {"workflow_json": workflow, "return_outputs_as_base64": True}}
    return made


def _request_body(examples: dict[str, dict[str, Any]]) -> dict[str, Any]:
    schema = GenerateRequest.model_json_schema(ref_template="#/components/schemas/{model}")
    schema.pop("$defs", None)
    shown = {name: {"summary": name, "value": body} for name, body in examples.items()}
    parts = {
        "type": "object",
        "properties": {"input": {"type": "string", "description": "The JSON body."}},
        "additionalProperties": {"type": "string", "format": "binary"},
        "required": ["input"],
    }
    return {
        "required": True,
        "content": {
            "application/json": {"schema": schema, **({"examples": shown} if shown else {})},
            "multipart/form-data": {"schema": parts},
        },
    }
