"""GET /jobs, DELETE /jobs/{id}: the jobs on disk, those that have ended among them, until they expire."""

from __future__ import annotations

from typing import Annotated, Any, Protocol

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse, Response

from darkroom.worker.api.declared import refusals
from darkroom.worker.api.replies.jobs import Deletion, JobPage
from darkroom.worker.api.replies.results import Result
from darkroom.worker.api.results import check_caller, not_found, services_of
from darkroom.worker.errors import Problem, RequestRejected, ScopeMissing
from darkroom.worker.guard.identity.caller import Identity
from darkroom.worker.jobs.ownership import find_job
from darkroom.worker.settings.api_keys import Scope
from darkroom.worker.storage.database import storable
from darkroom.worker.storage.job import JobState
from darkroom.worker.storage.job_list import Cursor, CursorInvalid, JobFilter, ListedJob

MAX_PAGE = 1000

router = APIRouter(tags=["jobs"])


class ListsJobs(Protocol):
    async def page(self, wanted: JobFilter, after: Cursor | None, limit: int) -> list[ListedJob]:
        """Return the first `limit` jobs that pass a filter, after a position."""
        ...


Moment = Annotated[int | None, Query(ge=0, lt=2**63)]


@router.get(
    "/jobs",
    operation_id="list_jobs",
    response_model=None,
    responses={200: {"model": JobPage}, **refusals(401, 403, 422, 429)},
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
    """Return a page of the caller's jobs, the newest first; an operator gets those of all callers, or of one `owner`.

    `state` may be repeated. `since_ms` and `before_ms` bound the arrival. `cursor` is the last page's `next_cursor`.
    """
    caller = check_caller(request)
    wanted = JobFilter(owners_of(caller, owner), tuple(dict.fromkeys(state or ())), since_ms, before_ms)
    return await page_of(services_of(request).jobs.store, wanted, limit, cursor, caller)


async def page_of(store: ListsJobs, wanted: JobFilter, limit: int, cursor: str, caller: Identity) -> dict[str, Any]:
    """Return a page of the jobs of a store as its caller sees them. Raises RequestRejected."""
    found = await store.page(wanted, _position(cursor), limit + 1)
    page = found[:limit]
    return {
        "jobs": [_shown(job, caller) for job in page],
        "next_cursor": page[-1].cursor.text if len(found) > limit else None,
    }


@router.delete(
    "/jobs/{job_id}",
    operation_id="delete_job",
    response_model=Deletion,
    responses=refusals(401, 403, 404, 429) | {409: {"model": Result, "description": "The job has not ended"}},
)
async def delete(job_id: str, request: Request) -> Response:
    """Delete an ended job: its result, its files on this worker, and its webhooks, delivered or not."""
    services = services_of(request)
    job = await find_job(services.jobs.store, job_id, check_caller(request))
    if job is None:
        return not_found(job_id)
    if job.state.is_terminal:
        await services.jobs.pipeline.check_end(job)
    await services.files.removal.delete(job)
    return JSONResponse({"id": job_id, "message": "Job deleted"})


def owners_of(caller: Identity, asked: str | None) -> tuple[str | None, ...]:
    """Return the owners whose jobs to list; none stands for all. Raises ScopeMissing."""
    if caller.is_admin:
        return () if asked is None else (storable(asked),)
    if asked not in (None, caller.key_name):
        raise ScopeMissing("owner: only an operator may list the jobs of another key", scope=Scope.ADMIN.value)
    return caller.key_name, None


def _position(cursor: str) -> Cursor | None:
    try:
        return Cursor.of(cursor) if cursor else None
    except CursorInvalid:
        message = f"cursor: not one of this list; got {cursor[:100]!r}, expected a page's next_cursor"
        raise RequestRejected([Problem(message, field="query.cursor", type="cursor")]) from None


def _shown(job: ListedJob, caller: Identity) -> dict[str, object]:
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
