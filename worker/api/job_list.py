"""GET /jobs, GET and DELETE /jobs/{id}: the jobs on disk, those that have ended among them, until they expire."""

from __future__ import annotations

from typing import Annotated, Any, Protocol

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse, Response

from darkroom.worker.api.declared import refusals
from darkroom.worker.api.job_entries import detailed_page, entry_of, whole_entry
from darkroom.worker.api.replies.jobs import Deletion, DetailedJobEntry, JobPage
from darkroom.worker.api.replies.results import Result
from darkroom.worker.api.results import check_caller, not_found, services_of
from darkroom.worker.concurrency.off_loop import needs_thread, off_loop
from darkroom.worker.errors import Problem, RequestRejected, ScopeMissing
from darkroom.worker.guard.identity.caller import Identity
from darkroom.worker.jobs.ownership import find_job
from darkroom.worker.settings.api_keys import Scope
from darkroom.worker.storage.database import storable
from darkroom.worker.storage.job import JobState
from darkroom.worker.storage.job_list import Cursor, CursorInvalid, JobFilter, ListedJob

MAX_PAGE = 1000
MAX_DETAILED = 100

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
    details: bool = False,
    search: Annotated[str, Query(max_length=200)] = "",
) -> dict[str, Any] | Response:
    """Return a page of the caller's jobs, the newest first; an operator gets those of all callers, or of one `owner`.

    `state` may be repeated. `since_ms` and `before_ms` bound the arrival. `cursor` is the last page's `next_cursor`.
    With `details` a job has its title, what was asked and its outputs, too. `search` is a text in its prompt: a page
    looks through 500 jobs or 8 million characters, so it may be short of jobs and have a `next_cursor`. Both list at
    most 100 jobs.
    """
    caller = check_caller(request)
    wanted = JobFilter(owners_of(caller, owner), tuple(dict.fromkeys(state or ())), since_ms, before_ms)
    store = services_of(request).jobs.store
    if not details and not search:
        return await page_of(store, wanted, limit, cursor, caller)
    limit = min(limit, MAX_DETAILED)
    if search:
        found, after = await store.search(wanted, search, _position(cursor), limit, in_stored_workflows=caller.is_admin)
    else:
        listed = await store.page(wanted, _position(cursor), limit + 1)
        found, after = listed[:limit], listed[limit - 1].cursor if len(listed) > limit else None
    return await detailed_page(request, found, after, caller)


@router.get(
    "/jobs/{job_id}",
    operation_id="get_job",
    response_model=DetailedJobEntry,
    responses=refusals(401, 403, 404, 429),
)
async def job(job_id: str, request: Request) -> Response:
    """Return a job of the list with its details and the workflow that it ran, to be run again.

    The prompt of a stored workflow's job is for operators, as the workflow itself is.
    """
    caller, store = check_caller(request), services_of(request).jobs.store
    held = await find_job(store, job_id, caller)
    stored = None if held is None else await store.stored(held.id)
    if stored is None:
        return not_found(job_id)
    return await off_loop(needs_thread(stored.prompt), JSONResponse, whole_entry(request, stored, caller))


async def page_of(store: ListsJobs, wanted: JobFilter, limit: int, cursor: str, caller: Identity) -> dict[str, Any]:
    """Return a page of the jobs of a store as its caller sees them. Raises RequestRejected."""
    found = await store.page(wanted, _position(cursor), limit + 1)
    page = found[:limit]
    return {
        "jobs": [entry_of(job, caller) for job in page],
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
