"""Entries of the list of jobs, as their caller sees them: short ones, and those with title, parameters and outputs."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse

from darkroom.worker.api.results import services_of
from darkroom.worker.concurrency.off_loop import off_loop
from darkroom.worker.guard.identity.caller import Identity
from darkroom.worker.guard.url_secrets import without_url_secrets
from darkroom.worker.outputs.public import public_record
from darkroom.worker.prompts.job_title import title_of
from darkroom.worker.storage.job import Job
from darkroom.worker.storage.job_list import SHOWN_FAILURE, Cursor, JobDetails, ListedJob
from darkroom.worker.storage.job_search import STORED_WORKFLOW


def entry_of(job: ListedJob, caller: Identity) -> dict[str, object]:
    """Return the short entry of a job."""
    named = {"id": job.id, "owner": job.owner} if caller.is_admin else {"id": job.asked_id or job.id}
    shown: dict[str, object] = {
        **named,
        "status": job.state.value,
        "message": job.message,
        "metadata": dict(job.metadata),
        "timings": dict(job.timings),
    }
    if job.failure is not None:
        shown["error"] = dict(job.failure)
    return shown


async def detailed_page(
    request: Request, jobs: Sequence[ListedJob], after: Cursor | None, caller: Identity
) -> JSONResponse:
    """Return the reply with listed jobs and their details. A job that went meanwhile is left out."""
    details = await services_of(request).jobs.store.details(jobs)
    return await off_loop(True, _page, request, [job for job in jobs if job.id in details], details, after, caller)


def _page(
    request: Request,
    jobs: Sequence[ListedJob],
    details: Mapping[str, JobDetails],
    after: Cursor | None,
    caller: Identity,
) -> JSONResponse:
    entries = [entry_of(job, caller) | _details(request, job, details[job.id]) for job in jobs]
    return JSONResponse({"jobs": entries, "next_cursor": None if after is None else after.text})


def whole_entry(request: Request, job: Job, caller: Identity) -> dict[str, object]:
    """Return the entry of one job with its details and its prompt, if the caller may see that."""
    failure = None if job.failure is None else {name: getattr(job.failure, name) for name in SHOWN_FAILURE}
    cursor = Cursor(job.times.queued_at_ms, job.number)
    listed = ListedJob(
        id=job.id,
        asked_id=job.asked_id,
        owner=job.owner,
        state=job.state,
        message=job.message,
        metadata=job.metadata,
        timings=job.times.as_json(),
        failure=failure,
        cursor=cursor,
    )
    prompt = without_url_secrets(dict(job.prompt))  # those of a job that has not ended
    details = JobDetails(job.request.modifier, job.request.parameters, prompt, job.outputs)
    shown = entry_of(listed, caller) | _details(request, listed, details)
    is_hidden = STORED_WORKFLOW in job.request.parameters and not caller.is_admin
    return shown if is_hidden else shown | {"workflow_json": prompt}


def _details(request: Request, job: ListedJob, details: JobDetails) -> dict[str, Any]:
    return {
        "title": title_of(without_url_secrets(dict(details.prompt))),
        "modifier": details.modifier,
        "parameters": dict(details.parameters),
        "output": [_public(request, job.id, record) for record in details.outputs] if job.state.is_terminal else [],
    }


def _public(request: Request, job_id: str, record: Mapping[str, Any]) -> dict[str, object]:
    """Return an output's record with links below the address that this request came to."""
    deliveries = services_of(request).deliveries
    base = deliveries.outputs.public_url or str(request.base_url).rstrip("/")

    def link(path: str) -> str:
        return deliveries.links.link(base, job_id, path, time.time())

    return public_record(record, link, shows_folders=deliveries.shows_folders)
