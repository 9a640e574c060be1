"""POST /convert: the prompt in API format of a workflow that ComfyUI's page saved; runs nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from worker.api.callers import sender_of
from worker.api.declared import refusals
from worker.api.replies import Converted
from worker.api.results import check_caller, refuse, services_of
from worker.errors import EngineUnreachable, Problem, RequestRejected, WorkerError
from worker.guard.json_body import nested_too_deeply
from worker.jobs.page_workflow import as_prompt
from worker.json_values import JsonObject
from worker.off_loop import off_loop
from worker.services import Services
from worker.workflows.media import NoWorkflow, find_encoded_workflow

router = APIRouter(tags=["generate"])

ENGINE_WAIT_SECONDS: Final = 15.0
FIELD: Final = "workflow_json"
_BODY: Final[dict[str, Any]] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "title": "ConvertRequest",
                    "description": '`{"workflow_json": ...}`, or the workflow itself',
                }
            }
        },
    }
}


@router.post(
    "/convert",
    operation_id="convert",
    response_model=Converted,
    responses=refusals(401, 403, 413, 422, 429, 500, 502, 503),
    openapi_extra=_BODY,
)
async def convert(request: Request) -> Response:
    """Return a workflow in API format, converted by the engine's node declarations if the page saved it."""
    services = services_of(request)
    try:
        check_caller(request)
        with services.bodies.memory.lease(sender_of(request)) as lease:
            content = await services.bodies.read(request, lease)
            body = await services.bodies.parse(content)
            prompt = await _converted(services, body, len(content))
        return JSONResponse({FIELD: prompt})
    except RecursionError:
        return refuse(nested_too_deeply())
    except WorkerError as error:
        return refuse(error)


async def _converted(services: Services, body: JsonObject, size_bytes: int) -> JsonObject:
    """Return the prompt of a body. Raises RequestRejected, EngineUnreachable."""
    workflow = await off_loop(size_bytes >= 256 * 1024, workflow_in, body)
    await services.prompt_rules.check_size(workflow, size_bytes)
    engine = await services.pool.any_up_within(ENGINE_WAIT_SECONDS)
    try:
        object_info = await engine.known_object_info()
    except EngineUnreachable:
        raise services.pool.no_engine() from None
    return await as_prompt(workflow, object_info, services.prompt_rules)


def workflow_in(body: JsonObject) -> JsonObject:
    """Return the workflow of a body: its field, that of its `input`, or the body itself. Raises RequestRejected."""
    given = body.get("input") if isinstance(body.get("input"), Mapping) else body
    workflow = given.get(FIELD, body) if isinstance(given, Mapping) else body
    if isinstance(workflow, str):
        try:
            workflow = find_encoded_workflow(workflow)
        except NoWorkflow as error:
            raise RequestRejected([Problem(str(error), FIELD, type="no_workflow")]) from None
    if not isinstance(workflow, Mapping) or not workflow:
        message = "is no workflow; expected an object, or a file with one in base64"
        raise RequestRejected([Problem(message, FIELD, type="no_workflow")])
    return workflow
