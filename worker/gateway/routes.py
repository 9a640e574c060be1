"""Routes of the gateway: the front's, for jobs that run elsewhere."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from darkroom.worker.api.body_sizes import takes_jobs, takes_little
from darkroom.worker.api.declared import ENDINGS, EVENT_STREAM, SUBMISSION, SUBMISSION_HEADERS, refusals
from darkroom.worker.api.job_list import MAX_PAGE, Moment, owners_of, page_of
from darkroom.worker.api.replies.jobs import Cancellation, Deletion, JobPage
from darkroom.worker.api.replies.results import Result
from darkroom.worker.api.request_forms import open_request
from darkroom.worker.api.request_warnings import find_form_warnings, id_warning
from darkroom.worker.api.results import check_caller, not_found
from darkroom.worker.api.schemas import ParsedRequest, is_true, parse_generate
from darkroom.worker.api.services import RequestServices
from darkroom.worker.autoscaler.envelope import Envelopes
from darkroom.worker.concurrency.off_loop import off_loop
from darkroom.worker.errors import JobNotEnded, NotReady, Problem, RequestIdTaken, RequestRejected, http_status_for_vast
from darkroom.worker.gateway.checks import check_request
from darkroom.worker.gateway.gateway import Gateway
from darkroom.worker.gateway.large_replies import pieces_of, reply_of
from darkroom.worker.gateway.metrics import GatewayMetrics
from darkroom.worker.gateway.placing import placed
from darkroom.worker.gateway.request_limits import RequestLimits
from darkroom.worker.gateway.request_rates import RequestRates
from darkroom.worker.gateway.workers.desk import WorkerDesk
from darkroom.worker.gateway.workers.tokens import WorkerTokens
from darkroom.worker.guard.bodies import Sender
from darkroom.worker.guard.json_scan import FoundJson
from darkroom.worker.jobs.admission import clean_id, fresh_id
from darkroom.worker.jobs.envelope import result_of
from darkroom.worker.jobs.ownership import find_job, id_to_use, own_id
from darkroom.worker.json import finite as finite_json
from darkroom.worker.json.finite import FiniteJSONResponse
from darkroom.worker.json.values import JsonObject
from darkroom.worker.sources.broker import BrokerUnreachable
from darkroom.worker.storage.job import Job, JobState, body_hash
from darkroom.worker.storage.job_list import JobFilter

router = APIRouter(tags=["generate"])
HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


@dataclass(frozen=True, slots=True)
class GatewayServices:
    """Services that the routes use. The check of callers takes their `requests`, as it does those of a worker."""

    gateway: Gateway
    requests: RequestServices
    request_rates: RequestRates | None
    metrics: GatewayMetrics
    limits: RequestLimits
    envelopes: Envelopes
    tokens: WorkerTokens
    desk: WorkerDesk
    dialects: tuple[APIRouter, ...] = ()
    fetches_models: bool = False


def services_of(request: Request) -> GatewayServices:
    services: GatewayServices = request.app.state.services
    return services


@router.post(
    "/generate", operation_id="generate", status_code=202, response_model=Result,
    responses=SUBMISSION | refusals(499, 504), openapi_extra=SUBMISSION_HEADERS,
)  # fmt: skip
@takes_jobs
async def generate(request: Request) -> Response:
    """Submit a job and reply at once; poll `/result/{id}` for its state."""
    job = await _submitted(request)
    return await _reply(request, job, None if job.state.is_terminal else 202)


@router.post(
    "/generate/sync", operation_id="generate_sync", response_model=Result,
    responses=SUBMISSION | refusals(499, 504), openapi_extra=SUBMISSION_HEADERS,
)  # fmt: skip
@takes_jobs
async def generate_sync(request: Request) -> Response:
    """Submit a job and reply when it has ended. It goes on when the client leaves."""
    job = await _submitted(request)
    async for event in services_of(request).gateway.follow(job):
        job = event.job
        if not job.state.is_terminal and await request.is_disconnected():
            return Response(status_code=499)
    return await _reply(request, job, http_status_for_vast(job.http_status) if has_envelope(request) else None)


@router.post(
    "/generate/stream", operation_id="generate_stream", response_class=StreamingResponse,
    responses=EVENT_STREAM | SUBMISSION, openapi_extra=SUBMISSION_HEADERS,
)  # fmt: skip
@takes_jobs
async def generate_stream(request: Request) -> Response:
    """Submit a job and stream its progress as server-sent events, the result last."""
    return _stream(await _submitted(request), request)


@router.get(
    "/stream/{job_id}", operation_id="stream", response_class=StreamingResponse,
    responses=EVENT_STREAM | refusals(401, 403, 404, 429), tags=["jobs"],
)  # fmt: skip
async def stream(job_id: str, request: Request) -> Response:
    """Attach to a job as server-sent events."""
    job = await find_job(services_of(request).gateway.records, job_id, check_caller(request))
    return not_found(job_id) if job is None else _stream(job, request)


@router.get(
    "/result/{job_id}", operation_id="get_result", response_model=Result,
    responses=refusals(401, 403, 404, 429, 503, *ENDINGS), tags=["jobs"],
)  # fmt: skip
async def result(job_id: str, request: Request) -> Response:
    """Return the result of a job, or its state so far."""
    gateway = services_of(request).gateway
    job = await find_job(gateway.records, job_id, check_caller(request))
    if job is None:
        return not_found(job_id)
    ended = await gateway.ended(job)
    if ended is not None:
        return await _reply(request, ended)
    shown = result_of(job, [])
    events = await gateway.events(job)
    if events:
        newest = events[-1]
        if not JobState(newest["status"]).is_terminal:
            shown |= {"status": newest["status"], "message": newest["message"]}
    return FiniteJSONResponse(shown)


@router.post(
    "/cancel/{job_id}", operation_id="cancel", response_model=Cancellation,
    responses=refusals(401, 403, 404, 429, 503), tags=["jobs"],
)  # fmt: skip
@takes_little
async def cancel(job_id: str, request: Request) -> Response:
    """Cancel a job at any stage. Cancelling twice, or too late, is no error."""
    gateway = services_of(request).gateway
    job = await find_job(gateway.records, job_id, check_caller(request))
    if job is None:
        return not_found(job_id)
    has_ended = job.state.is_terminal
    try:
        job = await gateway.cancel(job)
    except BrokerUnreachable as error:
        raise NotReady(f"The broker cannot be reached: {error}", retry_after_seconds=5) from None
    message = "Request has already ended" if has_ended else "Request has ended"
    if job.state is JobState.CANCELLED and not has_ended:
        return JSONResponse({"message": "Request cancelled", "status": job.state.value})
    if not job.state.is_terminal:
        return JSONResponse({"message": "Cancellation requested", "status": job.state.value})
    return JSONResponse({"message": f"{message} ({job.state.value})", "status": job.state.value})


@router.get(
    "/jobs",
    operation_id="list_jobs",
    responses={200: {"model": JobPage}, **refusals(401, 403, 422, 429)},
    tags=["jobs"],
)
async def jobs(
    request: Request,
    state: Annotated[list[JobState] | None, Query()] = None,
    owner: str | None = None,
    since_ms: Moment = None,
    before_ms: Moment = None,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 50,
    cursor: str = "",
) -> dict[str, Any]:
    """Return a page of the caller's jobs, the newest first. A job that has not ended is `pending` here."""
    caller = check_caller(request)
    wanted = JobFilter(owners_of(caller, owner), tuple(dict.fromkeys(state or ())), since_ms, before_ms)
    return await page_of(services_of(request).gateway.records, wanted, limit, cursor, caller)


@router.delete(
    "/jobs/{job_id}", operation_id="delete_job", response_model=Deletion,
    responses=refusals(401, 403, 404, 429) | {409: {"model": Result, "description": "The job has not ended"}},
    tags=["jobs"],
)  # fmt: skip
async def delete(job_id: str, request: Request) -> Response:
    """Delete an ended job and its result."""
    gateway = services_of(request).gateway
    job = await find_job(gateway.records, job_id, check_caller(request))
    if job is None:
        return not_found(job_id)
    if await gateway.ended(job) is None:
        raise JobNotEnded("The job has not ended; expected an ended one, cancel it first", request_id=job.public_id)
    await gateway.records.delete(job)
    return JSONResponse({"id": job_id, "message": "Job deleted"})


@router.get("/queue-info", operation_id="get_queue_info", tags=["jobs"])
async def queue_info(request: Request) -> dict[str, int]:
    """Return the number of jobs at the broker and not ended, and of workers that have announced themselves."""
    check_caller(request)
    gateway = services_of(request).gateway
    try:
        depth = await gateway.producer.depth()
    except BrokerUnreachable as error:
        raise NotReady(f"The broker cannot be reached: {error}", retry_after_seconds=5) from None
    return {
        "queued": depth,
        "live": await gateway.records.num_live(is_probe=True),
        "workers": await gateway.fleet.num_workers(),
    }


async def _submitted(request: Request) -> Job:
    """Return the job of a request, new or earlier. Raises WorkerError."""
    services, gateway = services_of(request), services_of(request).gateway
    caller = check_caller(request)
    if request.headers.get("content-type", "").startswith("multipart/"):
        message = "Content-Type: not taken by a gateway; got multipart/form-data, expected application/json"
        raise RequestRejected([Problem(message, field="Content-Type")])
    with services.requests.bodies.memory.lease(Sender(is_known=True)) as lease:
        content = await services.requests.bodies.read(request, lease)
        body = _without_envelope(await services.requests.bodies.parse(content), request)
        parsed = await off_loop(True, _parsed, body, request)
    services.limits.check(parsed.input)
    work = await check_request(
        parsed.input,
        services.requests.modifiers,
        await gateway.fleet.node_lists(),
        services.requests.prompt_rules,
        fetches_models=services.fetches_models,
    )
    num_queued = 0 if parsed.input.deadline is None else await gateway.num_queued()
    place = await asyncio.to_thread(placed, parsed.input, work, await gateway.fleet.entries(), num_queued)
    digest = await asyncio.to_thread(body_hash, parsed.raw, parsed.wants_base64, False, is_large=True)
    named = parsed.input.request_id or request.headers.get("idempotency-key", "")
    asked_id = clean_id(named) if named else fresh_id()
    job_id = await id_to_use(gateway.records, asked_id, caller.key_name) if named else asked_id
    try:
        return await gateway.submit(parsed, digest, job_id, asked_id, caller, place, is_fresh=not named)
    except RequestIdTaken:  # just now, by another caller
        return await gateway.submit(parsed, digest, own_id(asked_id, caller.key_name), asked_id, caller, place)


def has_envelope(request: Request) -> bool:
    """Return True for a request in Vast's envelope, once its body has been read."""
    return bool(getattr(request.state, "has_envelope", False))


def _without_envelope(body: JsonObject, request: Request) -> JsonObject:
    """Return the payload of a body in Vast's envelope, any other body as it is. Raises EnvelopeRejected.

    The signature is not checked: it is for the worker that Vast named. A gateway goes by the request's key.
    """
    envelopes = services_of(request).envelopes
    if not envelopes.is_envelope(body):
        return body
    request.state.has_envelope = True
    return envelopes.open(body).payload


def _parsed(body: Mapping[str, Any], request: Request) -> ParsedRequest:
    found_json = FoundJson(services_of(request).requests.bodies.structure)
    body = open_request(body, found_json)
    given = parse_generate(body, found_json)
    raw = body["input"]
    named = given.request_id
    warnings = [*find_form_warnings(body), *(id_warning(named, clean_id(named), "input.request_id") if named else [])]
    return ParsedRequest(
        input=given,
        raw=raw,
        is_vast=has_envelope(request),
        wants_base64=given.return_outputs_as_base64 or is_true(request.headers.get("x-return-outputs-as-base64")),
        wants_engine_response=False,
        base_url="",
        warnings=tuple(warnings),
    )


async def _reply(request: Request, job: Job, status: int | None = None) -> Response:
    return await reply_of(services_of(request).gateway, job, _shown, status or job.http_status)


def _shown(job: Job) -> dict[str, object]:
    return result_of(job, [dict(one) for one in job.outputs])


def _stream(job: Job, request: Request) -> StreamingResponse:
    return StreamingResponse(_events(job, request), media_type="text/event-stream", headers=HEADERS)


async def _events(job: Job, request: Request) -> AsyncIterator[str | bytes]:
    began, seq, gateway = time.monotonic(), 0, services_of(request).gateway
    first = {"request_id": job.public_id, "status": "queued", "message": job.message}
    yield _event(0, first, began)
    async for event in gateway.follow(job):
        job = event.job
        if event.progress:
            seq = max(seq, int(event.progress.get("seq", 0)))
            percent = event.progress.get("percent", 0.0)
            shown = {name: event.progress[name] for name in ("status", "message")}
            yield _event(seq, {"request_id": job.public_id, **shown, "progress": {"percent": percent}}, began)
    yield f"id: {seq + 1}\ndata: "
    last = {"request_id": job.public_id, "status": "final_result"}
    async for piece in pieces_of(gateway, job, lambda whole: _timed({**last, "result": _shown(whole)}, began)):
        yield piece
    yield "\n\n"


def _event(event_id: int, data: Mapping[str, object], began: float) -> str:
    return f"id: {event_id}\ndata: {finite_json.dumps(_timed(data, began))}\n\n"


def _timed(data: Mapping[str, object], began: float) -> dict[str, object]:
    return {**data, "timestamp": time.time(), "elapsed_time": round(time.monotonic() - began, 3)}
