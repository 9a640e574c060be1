"""RunPod's forms of requests and replies at a gateway: those of `routes.py`, for jobs that run elsewhere."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from darkroom.worker.api.body_sizes import takes_jobs
from darkroom.worker.api.declared import SUBMISSION, refusals
from darkroom.worker.api.results import check_caller
from darkroom.worker.gateway.gateway import Gateway
from darkroom.worker.gateway.large_replies import reply_of
from darkroom.worker.gateway.routes import services_of
from darkroom.worker.integrations.runpod.replies import RunPodError, RunPodStatus
from darkroom.worker.integrations.runpod.routes import (
    DEFAULT_WAIT_MS,
    no_such_request,
    shown_end,
    submit_runpod,
    wait_seconds,
)
from darkroom.worker.jobs.ownership import find_job
from darkroom.worker.json.finite import FiniteJSONResponse
from darkroom.worker.storage.job import Job, JobState

router = APIRouter(tags=["RunPod's form"])

BEGUN = frozenset({JobState.GENERATING, JobState.GENERATED})

_REFUSALS: dict[int | str, dict[str, Any]] = {
    code: {**declared, "model": RunPodStatus} for code, declared in SUBMISSION.items()
}


@router.post("/run", operation_id="runpod_run", response_model=RunPodStatus, responses=_REFUSALS)
@takes_jobs
async def run(request: Request) -> Response:
    """Submit a job and return its id at once; poll `/status/{id}` for its state."""
    services = services_of(request)
    job = await submit_runpod(request, services.requests.bodies, services.gateway.records)
    return job if isinstance(job, Response) else await _reply(services.gateway, job)


@router.post("/runsync", operation_id="runpod_runsync", response_model=RunPodStatus, responses=_REFUSALS)
@takes_jobs
async def runsync(request: Request, wait: int = DEFAULT_WAIT_MS) -> Response:
    """Submit a job and reply when it has ended, or after `wait` milliseconds with its current state."""
    services = services_of(request)
    job = await submit_runpod(request, services.requests.bodies, services.gateway.records)
    if isinstance(job, Response):
        return job
    try:
        async with asyncio.timeout(wait_seconds(wait)):
            async for event in services.gateway.follow(job):
                job = event.job
    except TimeoutError:
        pass
    return await _reply(services.gateway, job)


@router.get(
    "/status/{job_id}",
    operation_id="runpod_status",
    response_model=RunPodStatus,
    responses=refusals(401, 403, 429) | refusals(404, model=RunPodError),
)
async def status(job_id: str, request: Request) -> Response:
    """Return the status of a job, and its output once it has ended."""
    gateway = services_of(request).gateway
    job = await find_job(gateway.records, job_id, check_caller(request))
    return no_such_request() if job is None else await _reply(gateway, job)


async def _reply(gateway: Gateway, job: Job) -> Response:
    ended = await gateway.ended(job)
    if ended is not None:
        return await reply_of(gateway, ended, lambda job: shown_end(job, [dict(one) for one in job.outputs]), 200)
    state = await _state_at_worker(gateway, job)
    return FiniteJSONResponse({"id": job.public_id, "status": "IN_PROGRESS" if state in BEGUN else "IN_QUEUE"})


async def _state_at_worker(gateway: Gateway, job: Job) -> JobState:
    """Return the newest state that a worker has published of a job that has not ended."""
    events = await gateway.events(job)
    return JobState(events[-1]["status"]) if events else job.state
