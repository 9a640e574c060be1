"""POST /form: the inputs of a workflow's nodes as the fields of a form; runs nothing."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import Response

from darkroom.worker.api.body_sizes import takes_jobs
from darkroom.worker.api.declared import refusals
from darkroom.worker.api.replies.workflows import Form
from darkroom.worker.api.services import Services
from darkroom.worker.api.workflow_bodies import ENGINE_WAIT_SECONDS, FIELD, body_schema, checked_workflow, reply_to
from darkroom.worker.concurrency.off_loop import off_loop
from darkroom.worker.errors import EngineUnreachable
from darkroom.worker.json.values import JsonObject
from darkroom.worker.prompts.page_workflow import app_mode_of, as_prompt
from darkroom.worker.prompts.rules import PromptRules
from darkroom.worker.prompts.workflows.form import form_of

router = APIRouter(tags=["generate"])


@router.post(
    "/form",
    operation_id="form",
    response_model=Form,
    responses=refusals(401, 403, 413, 422, 429, 500, 502, 503),
    openapi_extra=body_schema("FormRequest"),
)
@takes_jobs
async def form(request: Request) -> Response:
    """Return a workflow in API format with a field for each input of its nodes that has a value.

    The inputs of a page's app mode come first. A field's `target` names it in the `overrides` of a request.
    """
    return await reply_to(request, _formed)


async def _formed(services: Services, body: JsonObject, size_bytes: int) -> JsonObject:
    """Return the form of a body's workflow. Raises RequestRejected, EngineUnreachable."""
    workflow = await checked_workflow(services.requests, body, size_bytes)
    engine = await services.engines.pool.any_known_within(ENGINE_WAIT_SECONDS)
    try:
        object_info = await engine.known_object_info()
    except EngineUnreachable:
        raise services.engines.pool.no_engine() from None
    return await formed(workflow, object_info, services.requests.prompt_rules)


async def formed(workflow: JsonObject, object_info: JsonObject, rules: PromptRules) -> JsonObject:
    """Return the reply with a workflow's prompt and fields. Raises RequestRejected."""
    prompt = await as_prompt(workflow, object_info, rules)
    named = (await app_mode_of(workflow, object_info, rules)).inputs
    made = await off_loop(True, form_of, prompt, object_info, named)
    return {FIELD: prompt, **made.as_json()}
