"""PUT, GET, DELETE /workflows/NAME: workflows kept with versions; POST /workflows/NAME/run: a job of one.

Only an operator changes them and sees their documents; a caller sees what each takes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from darkroom.worker.api.body_sizes import takes_jobs
from darkroom.worker.api.callers import sender_of
from darkroom.worker.api.declared import EVENT_STREAM, SUBMISSION, SUBMISSION_HEADERS, refusals
from darkroom.worker.api.generate import reply_at_end, reply_at_once, reply_with_stream
from darkroom.worker.api.replies.results import Result
from darkroom.worker.api.replies.workflows import Deleted, StoredWorkflowEntry, StoredWorkflowList
from darkroom.worker.api.results import check_caller, check_operator, services_of
from darkroom.worker.api.services import EngineServices, FileServices, RequestServices
from darkroom.worker.api.workflow_bodies import ENGINE_WAIT_SECONDS, FIELD, workflow_of
from darkroom.worker.concurrency.off_loop import needs_thread, off_loop
from darkroom.worker.errors import EngineUnreachable, Problem, RequestRejected
from darkroom.worker.json.values import JsonObject, object_at
from darkroom.worker.prompts.page_workflow import app_mode_of, as_prompt
from darkroom.worker.prompts.workflows.overrides import PlaceFinder
from darkroom.worker.prompts.workflows.stored import schema_of_inputs
from darkroom.worker.settings.api_keys import Scope
from darkroom.worker.storage.stored_workflow import NAME, NAME_RULE, NamedInput, StoredWorkflow

router = APIRouter(tags=["workflows"])

RUN_ROUTES: Final = ("/workflows/{name}/run", "/workflows/{name}/run/sync", "/workflows/{name}/run/stream")
MAX_DESCRIPTION_LENGTH: Final = 2000
MAX_INPUTS: Final = 1000
_BODY: Final[dict[str, Any]] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "title": "StoreWorkflow",
                    "description": "The workflow itself, or an object with these fields.",
                    "properties": {
                        "workflow_json": {"type": "object", "description": "In API format, or as the page saves it."},
                        "description": {"type": "string"},
                        "inputs": {
                            "type": "object",
                            "description": "Named inputs; left out: those of the page's app mode.",
                            "additionalProperties": {
                                "description": 'A target as in `overrides`, or several, or `{"into": ...}`.'
                            },
                        },
                    },
                }
            }
        },
    }
}


@router.put(
    "/workflows/{name}",
    operation_id="put_workflow",
    response_model=StoredWorkflowEntry,
    responses={201: {"model": StoredWorkflowEntry}, **refusals(401, 403, 413, 422, 429, 500, 502, 503)},
    openapi_extra=_BODY,
)
@takes_jobs
async def put_workflow(name: str, request: Request) -> Response:
    """Store a workflow as the next version of a name; the newest version stays if it is the same."""
    services = services_of(request)
    check_operator(request)
    if not NAME.fullmatch(name):
        problem = Problem(f"name: not usable; got {name[:100]!r}, expected {NAME_RULE}", "name", type="bad_name")
        raise RequestRejected([problem])
    with services.requests.bodies.memory.lease(sender_of(request)) as lease:
        content = await services.requests.bodies.read(request, lease)
        body = await services.requests.bodies.parse(content)
        document = await workflow_of(services.requests, body)
        await services.requests.prompt_rules.check_size(document, len(content))
        object_info = await _object_info(services.engines)
        workflow = await _workflow_of(services.requests, name, body, document, object_info)
        stored, is_new = await services.files.workflows.put(workflow)
    shown = await _shown(services.files, stored, object_info, has_document=True)
    return JSONResponse(shown, status_code=201 if is_new else 200)


@router.get(
    "/workflows", operation_id="list_workflows", response_model=StoredWorkflowList, responses=refusals(401, 403, 429)
)
async def list_workflows(request: Request) -> Response:
    """Return the newest version of every stored workflow, without the workflows themselves."""
    services = services_of(request)
    check_caller(request)
    object_info = await _known_object_info(services.engines)
    found = [await _shown(services.files, item, object_info) for item in await services.files.workflows.newest()]
    return JSONResponse({"workflows": found})


@router.get(
    "/workflows/{name}",
    operation_id="get_workflow",
    response_model=StoredWorkflowEntry,
    responses=refusals(401, 403, 404, 429),
)
async def get_workflow(name: str, request: Request) -> Response:
    """Return a stored workflow: `NAME`, or `NAME@VERSION`. An operator gets its document, too."""
    services, caller = services_of(request), check_caller(request)
    stored = await services.files.workflows.get(name)
    is_operator = Scope.ADMIN in caller.scopes
    return JSONResponse(
        await _shown(services.files, stored, await _known_object_info(services.engines), has_document=is_operator)
    )


@router.delete(
    "/workflows/{name}",
    operation_id="delete_workflow",
    response_model=Deleted,
    responses=refusals(401, 403, 404, 429),
)
async def delete_workflow(name: str, request: Request) -> Response:
    """Delete every version of `NAME`, or `NAME@VERSION` alone. Jobs that were made of it are not affected."""
    check_operator(request)
    return JSONResponse({"deleted": await services_of(request).files.workflows.delete(name)})


@router.post(
    RUN_ROUTES[0],
    operation_id="run_workflow",
    status_code=202,
    response_model=Result,
    responses={200: {"model": Result}, **SUBMISSION, **refusals(404, 499, 504)},
    openapi_extra=SUBMISSION_HEADERS,
)
@takes_jobs
async def run_workflow(name: str, request: Request) -> Response:
    """Submit a job of a stored workflow and reply at once.

    The body has values for the named inputs, or `input` with the fields of a generate request.
    """
    return await reply_at_once(request, _naming(name))


@router.post(
    RUN_ROUTES[1],
    operation_id="run_workflow_sync",
    response_model=Result,
    responses={**SUBMISSION, **refusals(404, 499, 504)},
    openapi_extra=SUBMISSION_HEADERS,
)
@takes_jobs
async def run_workflow_sync(name: str, request: Request) -> Response:
    """Submit a job of a stored workflow and reply when it has ended."""
    return await reply_at_end(request, _naming(name))


@router.post(
    RUN_ROUTES[2],
    operation_id="run_workflow_stream",
    response_class=StreamingResponse,
    responses={**EVENT_STREAM, **SUBMISSION, **refusals(404)},
    openapi_extra=SUBMISSION_HEADERS,
)
@takes_jobs
async def run_workflow_stream(name: str, request: Request) -> Response:
    """Submit a job of a stored workflow and stream its changes as server-sent events."""
    return await reply_with_stream(request, _naming(name))


def _naming(name: str) -> Callable[[JsonObject], JsonObject]:
    """Return a function that makes a generate request for a stored workflow of the body of its own route."""

    def adapt(body: JsonObject) -> JsonObject:
        if not isinstance(body.get("input"), Mapping):
            return {"input": {"inputs": dict(body), "workflow": name}}
        return {**body, "input": {**object_at(body, "input"), "workflow": name}}

    return adapt


async def _object_info(engines: EngineServices) -> JsonObject:
    """Return the node declarations of an engine. Raises NotReady, EngineUnreachable."""
    engine = await engines.pool.any_known_within(ENGINE_WAIT_SECONDS)
    try:
        return await engine.known_object_info()
    except EngineUnreachable:
        raise engines.pool.no_engine() from None


async def _known_object_info(engines: EngineServices) -> JsonObject:
    """Return the node declarations that are known without waiting for an engine; empty for none."""
    try:
        return await engines.pool.any_client.known_object_info()
    except EngineUnreachable:
        return {}


async def _workflow_of(
    requests: RequestServices, name: str, body: JsonObject, document: JsonObject, object_info: JsonObject
) -> StoredWorkflow:
    """Return the workflow of a body, its named inputs found. Raises RequestRejected."""
    prompt = await as_prompt(document, object_info, requests.prompt_rules)
    settings = body if FIELD in body else {}
    description, given = settings.get("description") or "", settings.get("inputs")
    problems = []
    if not any(isinstance(node, Mapping) and isinstance(node.get("class_type"), str) for node in prompt.values()):
        message = f"no node has a class_type; expected {FIELD}, in API format or as the page saves it"
        problems.append(Problem(message, FIELD, type="no_workflow"))
    if not isinstance(description, str) or len(description) > MAX_DESCRIPTION_LENGTH:
        problems.append(Problem(f"expected a text of at most {MAX_DESCRIPTION_LENGTH} characters", "description"))
    if given is not None and (not isinstance(given, Mapping) or len(given) > MAX_INPUTS):
        problems.append(Problem(f"expected an object of at most {MAX_INPUTS} named inputs", "inputs"))
    if problems:
        raise RequestRejected(problems)
    app = await app_mode_of(document, object_info, requests.prompt_rules)
    if given is None:
        inputs = {key: NamedInput(places) for key, places in app.inputs.items()}
    else:
        is_large = needs_thread(prompt)
        inputs = await off_loop(is_large, _named_inputs, object_at(settings, "inputs"), prompt, object_info)
    outputs = tuple(node_id for node_id in app.outputs if node_id in prompt)
    return StoredWorkflow(name, 0, document, prompt, 0, str(description), inputs, outputs)


def _named_inputs(given: JsonObject, prompt: JsonObject, object_info: JsonObject) -> dict[str, NamedInput]:
    """Return the named inputs that a body declares. Raises RequestRejected."""
    found, finder = {}, PlaceFinder(prompt, object_info)
    for name, item in given.items():
        field = f"inputs.{name}"
        into = item.get("into") if isinstance(item, Mapping) else item
        targets = [into] if isinstance(into, str) else into
        if not isinstance(targets, list) or not targets or not all(isinstance(target, str) for target in targets):
            raise RequestRejected([Problem("expected a target such as 6.text, or a list of them", field)])
        about = item.get("description") or "" if isinstance(item, Mapping) else ""
        found[name] = NamedInput(finder.find(targets, field), str(about)[:MAX_DESCRIPTION_LENGTH])
    return found


async def _shown(
    files: FileServices, stored: StoredWorkflow, object_info: JsonObject, *, has_document: bool = False
) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "name": stored.name,
        "version": stored.version,
        "versions": await files.workflows.versions(stored.name),
        "created_ms": stored.created_ms,
        "description": stored.description,
        "inputs": {
            name: {"into": [place.target for place in named.places], "description": named.description}
            for name, named in stored.inputs.items()
        },
        "outputs": list(stored.outputs),
        "schema": schema_of_inputs(stored, object_info),
    }
    return shown | ({FIELD: stored.document} if has_document else {})
