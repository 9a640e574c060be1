"""The jobs of the Comfy API v2: submission with an idempotency key, state, events, cancellation, list."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import time
from collections.abc import AsyncIterator
from typing import Any, Final

import sqlalchemy as sa
from fastapi import APIRouter, Query, Request
from fastapi.responses import Response, StreamingResponse

from darkroom.worker.api.body_sizes import takes_jobs, takes_little
from darkroom.worker.api.callers import sender_of
from darkroom.worker.api.declared import EVENT_STREAM
from darkroom.worker.api.direct_submission import submit_input
from darkroom.worker.api.request_forms import partner_keys_in, read_workflow
from darkroom.worker.api.results import check_caller, public_outputs, services_of
from darkroom.worker.concurrency.off_loop import off_loop
from darkroom.worker.engines.preview_frames import PreviewFrame
from darkroom.worker.errors import JobNotFound, Problem, RequestRejected, ScopeMissing, WorkerError
from darkroom.worker.guard.identity.caller import Identity
from darkroom.worker.guard.json_body import nested_too_deeply
from darkroom.worker.guard.json_scan import FoundJson
from darkroom.worker.integrations.comfy_v2.assets import REFUSALS, base_of, refused
from darkroom.worker.integrations.comfy_v2.form import (
    BASE,
    STATUSES,
    moment,
    shown_job,
    shown_outputs,
    shown_progress,
    status_of,
)
from darkroom.worker.integrations.comfy_v2.labels import MAX_LABELS, read_filter, read_labels
from darkroom.worker.integrations.comfy_v2.replies import ComfyJob, ComfyJobs, ComfyWorkflow
from darkroom.worker.jobs.ownership import find_job
from darkroom.worker.json import finite as finite_json
from darkroom.worker.json.finite import FiniteJSONResponse
from darkroom.worker.settings.api_keys import Scope
from darkroom.worker.storage.database import JOBS, is_row_of
from darkroom.worker.storage.job import Job, JobState
from darkroom.worker.storage.job_labels import find_labelled, labels_of

router = APIRouter(prefix=BASE, tags=["Comfy API v2"])

LOOK_SECONDS: Final = 2.0
KEEP_ALIVE_SECONDS: Final = 10.0
MIN_PAUSE_SECONDS: Final = 0.02
MAX_PAGE: Final = 200
NO_PREVIEWS: Final = "none"
_BODY: Final[dict[str, Any]] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "required": ["workflow"],
                    "properties": {
                        "workflow": {"type": "object", "description": "In API format, or as the page saves it."},
                        "extra_data": {"type": "object"},
                        "metadata": {"type": "object", "maxProperties": MAX_LABELS, "description": "Labels."},
                    },
                }
            }
        },
    }
}


@router.post(
    "/jobs", operation_id="comfy_create_job", status_code=201, response_model=ComfyJob, responses=REFUSALS,
    openapi_extra=_BODY,
)  # fmt: skip
@takes_jobs
async def create_job(request: Request) -> Response:
    """Submit a workflow. The same `Idempotency-Key` and body never run twice."""
    try:
        caller, services = check_caller(request), services_of(request)
        with services.requests.bodies.memory.lease(sender_of(request)) as lease:
            content = await services.requests.bodies.read(request, lease)
            body = await services.requests.bodies.parse(content)
        given = await off_loop(True, _input_of, body, FoundJson(services.requests.bodies.structure))
        unhashed = {"previews": _wants_previews(body)}
        key = request.headers.get("idempotency-key", "")
        admitted = await submit_input(request, caller, given, key, unhashed=unhashed)
        return FiniteJSONResponse(await _shown(admitted.job, request), status_code=201)
    except RecursionError:
        return refused(nested_too_deeply())
    except WorkerError as error:
        return refused(error)


@router.get("/jobs", operation_id="comfy_list_jobs", response_model=ComfyJobs, responses=REFUSALS)
async def list_jobs(request: Request, limit: int = Query(50, ge=1, le=MAX_PAGE), cursor: str = "") -> Response:
    """Return the caller's jobs, the newest first; an operator gets all.

    `metadata[KEY]=VALUE` in the query, also several, asks for jobs with these labels.
    """
    try:
        caller, store = check_caller(request), services_of(request).jobs.store
        labels = read_filter(request.query_params.multi_items())
        if cursor and not (cursor.isdecimal() and len(cursor) < 18):
            raise RequestRejected([Problem("cursor: is none of this list", "query.cursor", type="invalid_cursor")])
        owner = None if Scope.ADMIN in caller.scopes else caller.key_name
        before = int(cursor) if cursor else None
        found = await find_labelled(store, labels, limit + 1, owner=owner, before=before)
    except WorkerError as error:
        return refused(error)
    jobs = [await store.find(job_id) for job_id, _ in found[:limit]]
    listed = [_summary(job) for job in jobs if job is not None]
    more = {"next_cursor": str(found[limit - 1][1])} if len(found) > limit else {}
    return FiniteJSONResponse({"jobs": listed, **more})


@router.get("/jobs/{job_id}", operation_id="comfy_get_job", response_model=ComfyJob, responses=REFUSALS)
async def get_job(job_id: str, request: Request) -> Response:
    """Return a job, with its outputs once it has ended."""
    try:
        job = await _job(job_id, request, check_caller(request))
        return FiniteJSONResponse(await _shown(job, request))
    except WorkerError as error:
        return refused(error)


@router.get(
    "/jobs/{job_id}/events", operation_id="comfy_job_events", response_class=StreamingResponse,
    responses={**EVENT_STREAM, **REFUSALS},
)  # fmt: skip
async def job_events(job_id: str, request: Request) -> Response:
    """Stream a job's status, progress and outputs as server-sent events."""
    try:
        job = await _job(job_id, request, check_caller(request))
    except WorkerError as error:
        return refused(error)
    headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
    return StreamingResponse(_events(job, request), media_type="text/event-stream", headers=headers)


@router.post("/jobs/{job_id}/cancel", operation_id="comfy_cancel_job", response_model=ComfyJob, responses=REFUSALS)
@takes_little
async def cancel_job(job_id: str, request: Request) -> Response:
    """Cancel a job, within one sampling step. One that has ended stays as it is."""
    try:
        job = await _job(job_id, request, check_caller(request))
        pipeline = services_of(request).jobs.pipeline
        if pipeline.cancel(job):
            await pipeline.check_end(job)
        return FiniteJSONResponse(await _shown(job, request))
    except WorkerError as error:
        return refused(error)


@router.get(
    "/jobs/{job_id}/workflow", operation_id="comfy_job_workflow", response_model=ComfyWorkflow, responses=REFUSALS
)
async def job_workflow(job_id: str, request: Request) -> Response:
    """Return the prompt that a job ran; that of a stored workflow is for operators, as the workflow itself is."""
    try:
        caller = check_caller(request)
        job = await _job(job_id, request, caller)
        if "workflow" in job.request.parameters and not caller.is_admin:
            message = "workflow: only an operator may see the prompt of a stored workflow"
            raise ScopeMissing(message, scope=Scope.ADMIN.value)
    except WorkerError as error:
        return refused(error)
    rows = await services_of(request).jobs.store.read(sa.select(JOBS.c.prompt).where(is_row_of(job)))
    prompt = await asyncio.to_thread(json.loads, rows[0].prompt) if rows else {}
    return FiniteJSONResponse({"workflow": prompt, "format": "api"})


def _input_of(body: dict[str, object], found_json: FoundJson) -> dict[str, Any]:
    """Return the `input` object for a body, in other tools' forms, too. Raises RequestRejected."""
    extra = body.get("extra_data")
    workflow, _ = read_workflow(body["workflow"] if body.get("workflow") is not None else body, "workflow", found_json)
    labels = read_labels(body.get("metadata"))
    page = extra.get("extra_pnginfo") if isinstance(extra, dict) else None
    kept = partner_keys_in(extra) | ({"extra_pnginfo": page} if isinstance(page, dict) else {})
    return {
        "workflow_json": workflow,
        **({"extra_data": kept} if kept else {}),
        **({"metadata": labels} if labels else {}),
    }


def _wants_previews(body: dict[str, object]) -> bool:
    """Return False where the submission switches previews off by ComfyUI's field `preview_method`."""
    extra = body.get("extra_data")
    return not isinstance(extra, dict) or extra.get("preview_method") != NO_PREVIEWS


async def _job(job_id: str, request: Request, caller: Identity) -> Job:
    """Return a caller's job. Raises JobNotFound."""
    job = await find_job(services_of(request).jobs.store, job_id, caller)
    if job is None:
        raise JobNotFound(f"job {job_id[:80]}: no such id")
    return job


async def _shown(job: Job, request: Request) -> dict[str, Any]:
    services = services_of(request)
    job = await services.jobs.pipeline.shown(job)
    position = _position(job, request)
    return shown_job(job, await _outputs(job, request), position, services.files.assets.ttl_seconds)


def _position(job: Job, request: Request) -> int | None:
    """Return the place of a waiting job in its queue, 1 is next; None for any other."""
    found = services_of(request).jobs.queue_info.position_of(job).get("position")
    return found if status_of(job) == "queued" and isinstance(found, int) else None


async def _outputs(job: Job, request: Request) -> list[dict[str, Any]]:
    records = await public_outputs(job, request)
    if not records:
        return []
    return shown_outputs(job, records, base_of(request), services_of(request).files.assets.ttl_seconds)


async def _events(job: Job, request: Request) -> AsyncIterator[str]:
    services = services_of(request)
    status, sent_at = "", time.monotonic()
    progress: dict[str, Any] = {}
    frame: PreviewFrame | None = None
    with services.jobs.pipeline.feed.watch(job.id) as changed:
        while not services.jobs.pipeline.has_ended(job):
            changed.clear()
            if services.jobs.pipeline.is_deferred(job):
                return  # the worker stops; the client asks again
            now = shown_progress(job)
            if status_of(job) != status or now != progress:
                await services.jobs.store.settle(job)
            if not job.state.is_terminal and status_of(job) != status:
                status, sent_at = status_of(job), time.monotonic()
                yield _event("status", {"status": status, "queue_position": _position(job, request)})
            if job.preview is not None and job.preview is not frame:
                frame, sent_at = job.preview, time.monotonic()
                yield _event("preview", _shown_preview(frame))
            if now != progress:
                progress, sent_at = now, time.monotonic()
                yield _event("progress", progress)
            elif time.monotonic() - sent_at > KEEP_ALIVE_SECONDS:
                sent_at = time.monotonic()
                yield ": keep-alive\n\n"
            await asyncio.sleep(MIN_PAUSE_SECONDS)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await changed.wait()
    if job.state is JobState.COMPLETED:
        yield _event("progress", shown_progress(job))
    for output in await _outputs(job, request):
        yield _event("output", output)
    yield _event("status", {"status": status_of(job), "queue_position": None})


def _summary(job: Job) -> dict[str, Any]:
    updated_ms = job.times.completed_at_ms or job.times.queued_at_ms
    return {
        "id": job.public_id,
        "status": STATUSES[job.state],
        "create_time": moment(job.times.queued_at_ms),
        "update_time": moment(updated_ms),
        "metadata": labels_of(job.metadata),
    }


def _shown_preview(frame: PreviewFrame) -> dict[str, str]:
    data = base64.b64encode(frame.image).decode()
    return {"node_id": frame.node_id, "content_type": frame.media_type, "data_base64": data}


def _event(name: str, data: dict[str, Any]) -> str:
    return f"event: {name}\ndata: {finite_json.dumps(data)}\n\n"
