"""ComfyUI's `/api/jobs`: prompts that wait, run and have ended as one list; one of them; cancelling by id.

Bodies and errors (`{"error": "..."}`) are ComfyUI's. Ids are whatever strings clients gave to `POST /prompt`.
"""

from __future__ import annotations

import asyncio
import json

from aiohttp import web

from darkroom.engine.server.job_records import (
    JobQuery,
    JobStatus,
    full_record,
    list_records,
    waiting_record,
)
from darkroom.engine.server.requests import read_object
from darkroom.engine.server.services import Services, services

SORT_FIELDS = ("created_at", "execution_duration")
SORT_ORDERS = ("asc", "desc")


async def get_jobs(request: web.Request) -> web.Response:
    """List jobs: `status` (comma list), `workflow_id`, `sort_by`, `sort_order`, `limit`, `offset`. 400 for others."""
    query = _read_query(request)
    parts = services(request)
    running, waiting, ended = parts.queue.all_running, parts.queue.waiting(), parts.history.page()
    # The history has up to ten thousand entries, which never change.
    jobs, total = await asyncio.to_thread(list_records, query, running, waiting, ended)
    has_more = query.offset + len(jobs) < total
    pagination = {"offset": query.offset, "limit": query.limit, "total": total, "has_more": has_more}
    return web.json_response({"jobs": jobs, "pagination": pagination})


async def get_job(request: web.Request) -> web.Response:
    """Send one job, with outputs and graph when it has ended; 404 for an unknown id."""
    parts, job_id = services(request), request.match_info["job_id"]
    entry = parts.history.get(job_id)
    if entry is not None:
        return web.json_response(full_record(entry))
    for status, items in (
        (JobStatus.IN_PROGRESS, parts.queue.all_running),
        (JobStatus.PENDING, parts.queue.waiting()),
    ):
        for item in items:
            if item.prompt_id == job_id:
                return web.json_response(waiting_record(item, status))
    return web.json_response({"error": "Job not found"}, status=404)


async def post_cancel(request: web.Request) -> web.Response:
    """Interrupt a running job, or forget a waiting one; `cancelled` is False for one that ended or is unknown."""
    return web.json_response({"cancelled": await _cancel(services(request), request.match_info["job_id"])})


async def post_cancel_many(request: web.Request) -> web.Response:
    """Cancel the jobs of `job_ids`; `cancelled` is True when one of them waited or ran."""
    job_ids = (await read_object(request)).get("job_ids")
    if not isinstance(job_ids, list):
        raise _refusal("job_ids must be a list")
    invalid = [job_id if isinstance(job_id, str) else repr(job_id) for job_id in job_ids if not _is_id(job_id)]
    if invalid:
        raise _refusal("job_ids contains invalid id(s)", invalid_ids=invalid)
    parts = services(request)
    cancelled = [await _cancel(parts, job_id) for job_id in job_ids]
    return web.json_response({"cancelled": any(cancelled)})


async def _cancel(parts: Services, job_id: str) -> bool:
    return parts.runner.delete(job_id) or await parts.runner.interrupt(job_id)


def _is_id(value: object) -> bool:
    return isinstance(value, str) and value != ""


def _read_query(request: web.Request) -> JobQuery:
    query = request.query
    names = [name.strip().lower() for name in query.get("status", "").split(",") if name.strip()]
    known = [status.value for status in JobStatus]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise _refusal(f"Invalid status value(s): {', '.join(unknown)}. Valid values: {', '.join(known)}")
    sort_by, order = query.get("sort_by", SORT_FIELDS[0]).lower(), query.get("sort_order", "desc").lower()
    for name, value, allowed in (("sort_by", sort_by, SORT_FIELDS), ("sort_order", order, SORT_ORDERS)):
        if value not in allowed:
            raise _refusal(f"{name} must be {' or '.join(map(repr, allowed))}")
    limit = _read_whole(request, "limit")
    if limit is not None and limit <= 0:
        raise _refusal("limit must be a positive integer")
    return JobQuery(
        statuses=frozenset(map(JobStatus, names or known)),
        workflow_id=query.get("workflow_id"),
        sort_by=sort_by,
        is_descending=order == "desc",
        limit=limit,
        offset=max(0, _read_whole(request, "offset") or 0),
    )


def _read_whole(request: web.Request, name: str) -> int | None:
    text = request.query.get(name)
    try:
        return None if text is None else int(text)
    except ValueError:
        raise _refusal(f"{name} must be an integer") from None


def _refusal(message: str, **more: object) -> web.HTTPBadRequest:
    return web.HTTPBadRequest(text=json.dumps({"error": message, **more}), content_type="application/json")


ROUTES = (
    web.get("/api/jobs", get_jobs),
    web.get("/api/jobs/{job_id}", get_job),
    web.post("/api/jobs/cancel", post_cancel_many),
    web.post("/api/jobs/{job_id}/cancel", post_cancel),
)
