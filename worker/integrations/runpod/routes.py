"""POST /run, POST /runsync, GET /status/{id}: RunPod's request and reply formats, for RunPod's clients.

The input is worker-comfyui's or `/generate`'s, the output likewise (`worker/integrations/runpod/shapes.py`). The job is
an ordinary one: `/cancel/{id}`, `/result/{id}` and `/stream/{id}` accept its id too.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Mapping
from typing import Any, Final

import httpx
from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from darkroom.worker.api.body_sizes import takes_jobs
from darkroom.worker.api.declared import SUBMISSION, refusals
from darkroom.worker.api.internal_requests import acting_as
from darkroom.worker.api.request_tracing import traceparent_of
from darkroom.worker.api.results import check_caller, public_outputs, refuse, services_of
from darkroom.worker.errors import Problem, RequestRejected, WorkerError
from darkroom.worker.guard.bodies import Bodies, Sender
from darkroom.worker.guard.json_body import nested_too_deeply
from darkroom.worker.integrations.runpod.replies import RunPodError, RunPodStatus
from darkroom.worker.integrations.runpod.shapes import InputRefused, result_reply, translate
from darkroom.worker.jobs.envelope import result_of
from darkroom.worker.jobs.ownership import FindsJobs, find_job
from darkroom.worker.json.finite import FiniteJSONResponse
from darkroom.worker.observe.tracing import trace_headers
from darkroom.worker.storage.job import Job, JobState, Stage

router = APIRouter(tags=["RunPod's form"])

DEFAULT_WAIT_MS: Final = 90_000
MAX_WAIT_MS: Final = 300_000
COMFYUI_MARK: Final = "comfyui-"
"""Prefix of the ids of jobs whose reply has worker-comfyui's shape."""

_REFUSALS: Final = {code: {**declared, "model": RunPodStatus} for code, declared in SUBMISSION.items()}
_BODY: Final[dict[str, Any]] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "title": "RunPodRequest",
                    "required": ["input"],
                    "properties": {
                        "input": {
                            "type": "object",
                            "description": "`/generate`'s input, or worker-comfyui's: `workflow`, `images`",
                        }
                    },
                }
            }
        },
    }
}

ENDED: Final[Mapping[JobState, str]] = {
    JobState.COMPLETED: "COMPLETED",
    JobState.FAILED: "FAILED",
    JobState.CANCELLED: "CANCELLED",
    JobState.TIMEOUT: "TIMED_OUT",
}


@router.post(
    "/run",
    operation_id="runpod_run",
    response_model=RunPodStatus,
    responses=_REFUSALS,
    openapi_extra=_BODY,
)
@takes_jobs
async def run(request: Request) -> Response:
    """Submit a job and return its id at once; poll `/status/{id}` for its state."""
    services = services_of(request)
    job = await submit_runpod(request, services.requests.bodies, services.jobs.store)
    return job if isinstance(job, Response) else FiniteJSONResponse(await _shown(job, request))


@router.post(
    "/runsync",
    operation_id="runpod_runsync",
    response_model=RunPodStatus,
    responses=_REFUSALS,
    openapi_extra=_BODY,
)
@takes_jobs
async def runsync(request: Request, wait: int = DEFAULT_WAIT_MS) -> Response:
    """Submit a job and reply when it has ended, or after `wait` milliseconds with its current state."""
    services = services_of(request)
    job = await submit_runpod(request, services.requests.bodies, services.jobs.store)
    if isinstance(job, Response):
        return job
    try:
        async with asyncio.timeout(wait_seconds(wait)):
            await services.jobs.pipeline.wait_for_end(job)
    except TimeoutError:
        pass
    return FiniteJSONResponse(await _shown(job, request))


@router.get(
    "/status/{job_id}",
    operation_id="runpod_status",
    response_model=RunPodStatus,
    responses=refusals(401, 403, 429) | refusals(404, model=RunPodError),
)
async def status(job_id: str, request: Request) -> Response:
    """Return the status of a job, and its output once it has ended."""
    job = await find_job(services_of(request).jobs.store, job_id, check_caller(request))
    if job is None:
        return no_such_request()
    return FiniteJSONResponse(await _shown(job, request))


def wait_seconds(wait_ms: int) -> float:
    """Return the seconds that a client of `/runsync` is kept waiting for its `wait`."""
    return min(max(wait_ms, 1000), MAX_WAIT_MS) / 1000


def no_such_request() -> Response:
    """Return RunPod's reply for an id that its caller has no job with."""
    return JSONResponse({"error": "request does not exist"}, status_code=404)


async def submit_runpod(request: Request, bodies: Bodies, jobs: FindsJobs) -> Job | Response:
    """Return the job of a request, which goes through `/generate` like every other, or the refusal."""
    job_id = str(uuid.uuid4())
    try:
        caller = check_caller(request)
        with bodies.memory.lease(Sender(is_known=True)) as lease:
            body = await bodies.parse(await bodies.read(request, lease))
        translated = await asyncio.to_thread(translate, body, job_id, wants_base64=True)
    except WorkerError as error:
        return refuse(error, job_id)
    except RecursionError:
        return refuse(nested_too_deeply(), job_id)
    except InputRefused as refused:
        reply = refused.as_reply()
        return JSONResponse(
            {"id": job_id, "status": "FAILED", "error": reply["error"], "output": reply}, status_code=422
        )
    if translated.is_comfyui_shape:
        translated.body["input"]["request_id"] = job_id = f"{COMFYUI_MARK}{job_id}"
    transport = httpx.ASGITransport(app=acting_as(request.app, caller), raise_app_exceptions=False)
    try:
        async with httpx.AsyncClient(transport=transport, base_url=str(request.base_url), timeout=None) as front:
            headers = {"content-type": "application/json", **trace_headers(traceparent_of(request))}
            content = await asyncio.to_thread(lambda: json.dumps(translated.body).encode())
            taken = await front.post("/generate", content=content, headers=headers)
    except (httpx.InvalidURL, UnicodeError):  # UnicodeError: from a name with invalid punycode
        return refuse(RequestRejected([Problem("is not a host's name or address", field="Host")]), job_id)
    answer = _answer_of(taken)
    job = await find_job(jobs, str(answer.get("id")), caller)
    if job is not None and taken.status_code in (200, 202):
        return job
    reply = result_reply(answer, is_comfyui_shape=True)
    shown = {"id": job_id, "status": "FAILED", "error": reply["error"], "output": reply}
    later = {name: taken.headers[name] for name in ("retry-after",) if name in taken.headers}
    return JSONResponse(shown, status_code=taken.status_code, headers=later)


def _answer_of(taken: httpx.Response) -> dict[str, object]:
    try:
        answer = json.loads(taken.content)
    except ValueError:
        answer = None
    if isinstance(answer, dict):
        return answer
    message = f"The worker failed with {taken.status_code}; its log has the reason"
    return {"message": message, "error": {"code": "internal_error", "message": message}}


async def _shown(job: Job, request: Request) -> dict[str, Any]:
    """Return RunPod's status of a job; `executionTime` and `delayTime` are milliseconds."""
    services = services_of(request)
    if not services.jobs.pipeline.has_ended(job):
        is_begun = job.stage in (Stage.RUNNING, Stage.DELIVERING)
        return {"id": job.public_id, "status": "IN_PROGRESS" if is_begun else "IN_QUEUE"}
    return shown_end(job, await public_outputs(job, request))


def shown_end(job: Job, outputs: list[dict[str, object]]) -> dict[str, Any]:
    """Return RunPod's status of a job that has ended; `outputs` are its public records."""
    times = job.times.as_json()
    shown: dict[str, Any] = {"id": job.public_id, "status": ENDED[job.state]}
    if times["total_ms"] is not None:
        worked_ms = times["generation_ms"] or 0
        shown |= {"delayTime": max(0, times["total_ms"] - worked_ms), "executionTime": worked_ms}
    result = result_of(job, outputs)
    reply = result_reply(result, is_comfyui_shape=job.public_id.startswith(COMFYUI_MARK))
    if "error" in reply and job.state is not JobState.COMPLETED:
        shown["error"] = reply["error"]
    return shown | {"output": reply}
