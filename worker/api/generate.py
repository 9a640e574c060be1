"""POST /generate, /generate/sync, /generate/stream: each creates a job, or replies with every reason of refusal."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response, StreamingResponse

from darkroom.worker.api.body_sizes import takes_jobs
from darkroom.worker.api.declared import EVENT_STREAM, SUBMISSION, SUBMISSION_HEADERS, refusals
from darkroom.worker.api.replies.results import Result
from darkroom.worker.api.results import reply_with, services_of
from darkroom.worker.api.services import JobServices
from darkroom.worker.api.stream import stream_of
from darkroom.worker.api.submission import as_it_came, submit
from darkroom.worker.json.values import JsonObject
from darkroom.worker.storage.job import Job

router = APIRouter(tags=["generate"])

_REPLAYED: dict[int | str, dict[str, Any]] = {200: {"model": Result, "description": "The job has ended already"}}


@router.post(
    "/generate",
    operation_id="generate",
    status_code=202,
    response_model=Result,
    responses=_REPLAYED | SUBMISSION | refusals(499, 504),
    openapi_extra=SUBMISSION_HEADERS,
)
@takes_jobs
async def generate(request: Request) -> Response:
    """Submit a job and reply at once; poll `/result/{id}` for its state."""
    return await reply_at_once(request)


async def reply_at_once(request: Request, adapt: Callable[[JsonObject], JsonObject] = as_it_came) -> Response:
    """Submit the job of a request and reply with its state; `adapt` as in `submit`."""
    submitted = await submit(request, adapt)
    if isinstance(submitted, Response):
        return submitted
    admitted, is_vast = submitted
    request.app.state.sync_waiters.detach(admitted.job)
    if admitted.job.state.is_terminal:
        return await reply_with(admitted.job, request, is_vast=is_vast)
    return await reply_with(admitted.job, request, status=202)


@router.post(
    "/generate/sync",
    operation_id="generate_sync",
    response_model=Result,
    responses=SUBMISSION | refusals(499, 504),
    openapi_extra=SUBMISSION_HEADERS,
)
@takes_jobs
async def generate_sync(request: Request) -> Response:
    """Submit a job and reply when it has ended. A disconnect starts a grace period, then the job is cancelled."""
    return await reply_at_end(request)


async def reply_at_end(request: Request, adapt: Callable[[JsonObject], JsonObject] = as_it_came) -> Response:
    """Submit the job of a request and reply with its result; `adapt` as in `submit`."""
    submitted = await submit(request, adapt)
    if isinstance(submitted, Response):
        return submitted
    admitted, is_vast = submitted
    services = services_of(request)
    with request.app.state.sync_waiters.waiting(admitted.job, is_owner=admitted.is_new):
        if not await _ends_before_client_leaves(services.jobs, admitted.job, request):
            return Response(status_code=499)
    return await reply_with(admitted.job, request, is_vast=is_vast)


@router.post(
    "/generate/stream",
    operation_id="generate_stream",
    response_class=StreamingResponse,
    responses=EVENT_STREAM | SUBMISSION,
    openapi_extra=SUBMISSION_HEADERS,
)
@takes_jobs
async def generate_stream(request: Request) -> Response:
    """Submit a job and stream its changes as server-sent events, the result last."""
    return await reply_with_stream(request)


async def reply_with_stream(request: Request, adapt: Callable[[JsonObject], JsonObject] = as_it_came) -> Response:
    """Submit the job of a request and reply with its events; `adapt` as in `submit`."""
    submitted = await submit(request, adapt)
    if isinstance(submitted, Response):
        return submitted
    admitted, _ = submitted
    request.app.state.sync_waiters.detach(admitted.job)
    return stream_of(admitted.job, request, is_new=admitted.is_new)


async def _ends_before_client_leaves(jobs: JobServices, job: Job, request: Request) -> bool:
    end = asyncio.ensure_future(jobs.pipeline.wait_for_end(job))
    leaving = asyncio.ensure_future(_wait_until_gone(request))
    try:
        await asyncio.wait({end, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if end.done():
            end.result()  # raises Draining when the job is left for the next start
        return end.done()
    finally:
        end.cancel()
        leaving.cancel()


async def _wait_until_gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
