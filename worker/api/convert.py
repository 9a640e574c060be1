"""POST /convert: the prompt in API format of a workflow that ComfyUI's page saved; runs nothing."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import Response

from darkroom.worker.api.body_sizes import takes_jobs
from darkroom.worker.api.declared import refusals
from darkroom.worker.api.replies.workflows import Converted
from darkroom.worker.api.services import Services
from darkroom.worker.api.workflow_bodies import ENGINE_WAIT_SECONDS, FIELD, body_schema, checked_workflow, reply_to
from darkroom.worker.errors import EngineUnreachable
from darkroom.worker.json.values import JsonObject
from darkroom.worker.prompts.page_workflow import as_prompt
from darkroom.worker.prompts.rules import PromptRules

router = APIRouter(tags=["generate"])


@router.post(
    "/convert",
    operation_id="convert",
    response_model=Converted,
    responses=refusals(401, 403, 413, 422, 429, 500, 502, 503),
    openapi_extra=body_schema("ConvertRequest"),
)
@takes_jobs
async def convert(request: Request) -> Response:
    """Return a workflow in API format, converted by the engine's node declarations if the page saved it."""
    return await reply_to(request, _converted)


async def _converted(services: Services, body: JsonObject, size_bytes: int) -> JsonObject:
    """Return the prompt of a body. Raises RequestRejected, EngineUnreachable."""
    workflow = await checked_workflow(services.requests, body, size_bytes)
    engine = await services.engines.pool.any_known_within(ENGINE_WAIT_SECONDS)
    try:
        object_info = await engine.known_object_info()
    except EngineUnreachable:
        raise services.engines.pool.no_engine() from None
    return await converted(workflow, object_info, services.requests.prompt_rules)


async def converted(workflow: JsonObject, object_info: JsonObject, rules: PromptRules) -> JsonObject:
    """Return the reply with a workflow's prompt. Raises RequestRejected."""
    return {FIELD: await as_prompt(workflow, object_info, rules)}
