"""GET /result/{id}, POST /cancel/{id}, GET /queue-info, GET /outputs/{id}/{file}."""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import FileResponse, JSONResponse, Response

from darkroom.worker.api.body_sizes import takes_little
from darkroom.worker.api.declared import ENDINGS, FILE, refusals
from darkroom.worker.api.page_headers import file_headers
from darkroom.worker.api.replies.jobs import Cancellation, QueueInfoReply
from darkroom.worker.api.replies.results import Result
from darkroom.worker.api.results import check_caller, not_found, refuse, reply_with, services_of
from darkroom.worker.errors import Forbidden, JobNotFound, Unauthorized, WorkerError
from darkroom.worker.jobs.ownership import find_job, id_in_path
from darkroom.worker.media.kinds import HEAD_BYTES
from darkroom.worker.outputs.media_types import media_type_of
from darkroom.worker.storage.job import JobState

router = APIRouter(tags=["jobs"])


@router.get(
    "/result/{job_id}",
    operation_id="get_result",
    response_model=Result,
    responses=refusals(401, 403, 404, 429, *ENDINGS),
)
async def result(job_id: str, request: Request) -> Response:
    """Return the result of a job, or its progress."""
    job = await find_job(services_of(request).jobs.store, job_id, check_caller(request))
    if job is None:
        return not_found(job_id)
    return await reply_with(job, request)


@router.post(
    "/cancel/{job_id}",
    operation_id="cancel",
    response_model=Cancellation,
    responses=refusals(401, 403, 404, 429, 503),
)
@takes_little
async def cancel(job_id: str, request: Request) -> JSONResponse:
    """Cancel a job within one sampling step, at any stage. Cancelling twice, or too late, is no error."""
    services = services_of(request)
    job = await find_job(services.jobs.store, job_id, check_caller(request))
    if job is None:
        return not_found(job_id)
    if not services.jobs.pipeline.cancel(job):
        message = f"Request has already ended ({job.state.value})"
        return JSONResponse({"message": message, "status": job.state.value})
    await services.jobs.pipeline.check_end(job)
    message = "Request cancelled" if job.state is JobState.CANCELLED else f"Request has ended ({job.state.value})"
    return JSONResponse({"message": message, "status": job.state.value})


@router.get(
    "/queue-info", operation_id="get_queue_info", response_model=None, responses={200: {"model": QueueInfoReply}}
)
async def queue_info(request: Request) -> dict[str, Any]:
    """Return the number of jobs at each stage and the estimated wait of a new one, from the last jobs' durations.

    `jobs` are the caller's that have not ended, in the order in which they will run; an operator gets all.
    """
    services = services_of(request)
    info = services.jobs.queue_info
    shown: dict[str, Any] = {
        **info.sizes(),
        "estimated_wait_seconds": round(info.wait_of_a_new_job(), 2),
        "estimated_wait_seconds_by_priority": info.waits_by_priority(),
        "seconds_per_job": round(info.seconds_per_job, 3),
        "engines": len(services.engines.pool.clients_serving),
    }
    with contextlib.suppress(Unauthorized, Forbidden):
        shown["jobs"] = info.listed(check_caller(request))
    return shown


@router.head("/outputs/{job_id}/{file_name:path}", include_in_schema=False)
@router.get(
    "/outputs/{job_id}/{file_name:path}",
    operation_id="get_output",
    response_class=FileResponse,
    responses=FILE | refusals(403, 404),
)
async def output(job_id: str, file_name: str, request: Request, expires: str = "", signature: str = "") -> Response:
    """Return one output file, by the signed link in its job's result."""
    services = services_of(request)
    try:
        services.deliveries.links.check(job_id, file_name, expires, signature, time.time())
        path = _inside(services.jobs.store.job_directory(id_in_path(job_id)), file_name)
        media_type = await asyncio.to_thread(_media_type, path)
    except (WorkerError, FileNotFoundError) as error:
        return refuse(error if isinstance(error, WorkerError) else JobNotFound("No such file"), job_id)
    return FileResponse(path, media_type=media_type, headers={"Cache-Control": "private", **file_headers(media_type)})


def _media_type(path: Path) -> str:
    with path.open("rb") as file:
        return media_type_of(path, file.read(HEAD_BYTES))


def _inside(folder: Path, file_name: str) -> Path:
    path = (folder / file_name).resolve()
    if not path.is_relative_to(folder.resolve()) or not path.is_file():
        raise JobNotFound("No such file")
    return path
