"""POST /convert and /form at a gateway: a worker's, by the node lists that workers announce."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from fastapi import APIRouter, Request
from fastapi.responses import Response

from darkroom.worker.api.body_sizes import takes_jobs
from darkroom.worker.api.convert import converted
from darkroom.worker.api.declared import refusals
from darkroom.worker.api.form import formed
from darkroom.worker.api.replies.workflows import Converted, Form
from darkroom.worker.api.workflow_bodies import body_schema, checked_workflow, reply_to
from darkroom.worker.errors import NotReady, RequestRejected
from darkroom.worker.gateway.routes import services_of
from darkroom.worker.json.values import JsonObject
from darkroom.worker.prompts.rules import PromptRules

router = APIRouter(tags=["generate"])

Make = Callable[[JsonObject, JsonObject, PromptRules], Awaitable[JsonObject]]
"""Makes a reply of a workflow by a node list."""

NO_LIST_SECONDS = 5.0


@router.post(
    "/convert",
    operation_id="convert",
    response_model=Converted,
    responses=refusals(401, 403, 413, 422, 429, 500, 503),
    openapi_extra=body_schema("ConvertRequest"),
)
@takes_jobs
async def convert(request: Request) -> Response:
    """Return a workflow in API format, converted by a worker's node declarations if the page saved it."""
    return await _by_a_list(request, converted)


@router.post(
    "/form",
    operation_id="form",
    response_model=Form,
    responses=refusals(401, 403, 413, 422, 429, 500, 503),
    openapi_extra=body_schema("FormRequest"),
)
@takes_jobs
async def form(request: Request) -> Response:
    """Return a workflow in API format with a field for each input of its nodes that has a value."""
    return await _by_a_list(request, formed)


async def _by_a_list(request: Request, make: Make) -> Response:
    """Reply by the first node list that has the workflow's nodes, else with the fewest problems that one found."""
    services = services_of(request)

    async def made(_worker: object, body: JsonObject, size_bytes: int) -> JsonObject:
        workflow = await checked_workflow(services.requests, body, size_bytes)
        refused: RequestRejected | None = None
        for object_info in (await services.gateway.fleet.node_lists()).lists:
            try:
                return await make(workflow, object_info, services.requests.prompt_rules)
            except RequestRejected as error:
                if refused is None or len(error.problems) < len(refused.problems):
                    refused = error
        if refused is not None:
            raise refused
        raise NotReady("No worker has announced its nodes yet", retry_after_seconds=NO_LIST_SECONDS)

    return await reply_to(request, made)
