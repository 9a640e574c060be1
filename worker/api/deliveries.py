"""POST /jobs/{id}/deliver: uploads of an ended job's files again, or to a store that its request did not name."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import ConfigDict

from darkroom.worker.api.body_sizes import takes_little
from darkroom.worker.api.declared import refusals
from darkroom.worker.api.job_making import credentials_of_stores
from darkroom.worker.api.replies.results import Result
from darkroom.worker.api.results import check_caller, not_found, reply_with, services_of
from darkroom.worker.api.schemas import StoresInput
from darkroom.worker.jobs.ownership import find_job

router = APIRouter(tags=["jobs"])


class DeliveryInput(StoresInput):
    """Store for the files of an ended job; without one the operator's."""

    model_config = ConfigDict(extra="forbid")


@router.post(
    "/jobs/{job_id}/deliver",
    operation_id="deliver_again",
    response_model=Result,
    responses=refusals(401, 403, 404, 413, 422, 429, 503)
    | {409: {"model": Result, "description": "The job has not ended"}},
)
@takes_little
async def deliver_again(job_id: str, request: Request, asked: DeliveryInput | None = None) -> Response:
    """Upload the files of an ended job that are in no store yet, without running anything; the reply is its result.

    The credentials of the job's own request were erased when it ended, so the body names the store: `s3`, `put` or
    `hf`, as in a generate request. Without one the operator's store is used.
    """
    services = services_of(request)
    job = await find_job(services.jobs.store, job_id, check_caller(request))
    if job is None:
        return not_found(job_id)
    if job.state.is_terminal:
        await services.jobs.pipeline.wait_for_end(job)
    credentials, _ = credentials_of_stores(services.deliveries, asked or DeliveryInput())
    # Whoever leaves may come back for the result: what has begun is sent to its end.
    await asyncio.shield(asyncio.ensure_future(services.deliveries.redelivery.deliver(job, credentials)))
    return await reply_with(job, request, status=200)
