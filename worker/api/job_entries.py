"""Entries of the list of jobs, as their caller sees them: short ones, and those with title, parameters and outputs."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import Request

from darkroom.worker.api.results import services_of
from darkroom.worker.concurrency.off_loop import off_loop
from darkroom.worker.guard.identity.caller import Identity
from darkroom.worker.guard.url_secrets import without_url_secrets
from darkroom.worker.json.values import JsonObject
from darkroom.worker.outputs.public import public_record
from darkroom.worker.prompts.job_title import title_of
from darkroom.worker.storage.job import Job
from darkroom.worker.storage.job_list import Cursor, JobDetails, ListedJob

STORED = "workflow"
"""Parameter of a job that names the stored workflow that it is of."""


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


async def detailed_entries(request: Request, jobs: Sequence[ListedJob], caller: Identity) -> list[dict[str, object]]:
    """Return the entries of listed jobs with their details. A job that went meanwhile has none."""
    details = await services_of(request).jobs.store.details(jobs)
    titles = await off_loop(True, _titles, {job_id: item.prompt for job_id, item in details.items()})
    return [
        entry_of(job, caller) | _details(request, job, details[job.id], titles[job.id])
        for job in jobs
        if job.id in details
    ]


def whole_entry(request: Request, job: Job, caller: Identity) -> dict[str, object]:
    """Return the entry of one job with its details and its prompt, if the caller may see that."""
    failure = None if job.failure is None else {"status": job.failure.status, "code": job.failure.code}
    listed = ListedJob(
        job.id,
        job.asked_id,
        job.owner,
        job.state,
        job.message,
        job.metadata,
        job.times.as_json(),
        None if failure is None or job.failure is None else {**failure, "message": job.failure.message},
        Cursor(job.times.queued_at_ms, job.number),
    )
    prompt = without_url_secrets(dict(job.prompt))  # those of a job that has not ended
    details = JobDetails(job.request.modifier, job.request.parameters, prompt, job.outputs)
    shown = entry_of(listed, caller) | _details(request, listed, details, title_of(prompt))
    is_hidden = STORED in job.request.parameters and not caller.is_admin
    return shown if is_hidden else shown | {"workflow_json": prompt}


def _titles(prompts: Mapping[str, JsonObject]) -> dict[str, str]:
    return {job_id: title_of(without_url_secrets(prompt)) for job_id, prompt in prompts.items()}


def _details(request: Request, job: ListedJob, details: JobDetails, title: str) -> dict[str, Any]:
    return {
        "title": title,
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
