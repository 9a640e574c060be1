"""Server-sent events of one job, for POST /generate/stream and GET /stream/{id}.

An event's id is the job's `seq`. The state in an event is on disk before the event is sent, so a client that reconnects
with `Last-Event-ID`, even after a crash, never sees an older state. Progress has no id of its own: a resumed stream
begins with a snapshot. A preview, of a job that asked for them, is in one event of a stream. The stream ends with the
result.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response, StreamingResponse

from darkroom.worker.api.declared import EVENT_STREAM, refusals
from darkroom.worker.api.results import check_caller, not_found, public_outputs, services_of
from darkroom.worker.api.services import JobServices
from darkroom.worker.engines.preview_frames import PreviewFrame
from darkroom.worker.jobs.envelope import result_of
from darkroom.worker.jobs.ownership import find_job
from darkroom.worker.json import finite as finite_json
from darkroom.worker.storage.job import Job

router = APIRouter(tags=["jobs"])

KEEP_ALIVE_SECONDS = 15.0
LOOK_SECONDS = 2.0  # polling interval of the place in the queue, which changes without the job
MIN_PAUSE_SECONDS = 0.02  # limits the event rate of a graph of thousands of small nodes
HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


@dataclass(frozen=True, slots=True)
class Event:
    """One event of a job's stream. `id` is the job's `seq`, 0 before it has one."""

    id: int
    data: Mapping[str, object]


@router.get(
    "/stream/{job_id}",
    operation_id="stream",
    response_class=StreamingResponse,
    responses=EVENT_STREAM | refusals(401, 403, 404, 429),
)
async def stream(job_id: str, request: Request) -> Response:
    """Attach to a job as server-sent events: a snapshot, every change, the result last."""
    job = await find_job(services_of(request).jobs.store, job_id, check_caller(request))
    if job is None:
        return not_found(job_id)
    return stream_of(job, request)


def stream_of(job: Job, request: Request, *, is_new: bool = False) -> StreamingResponse:
    content = _as_text(events_of(job, request, is_new=is_new))
    return StreamingResponse(content, media_type="text/event-stream", headers=HEADERS)


async def _as_text(events: AsyncIterator[Event | None]) -> AsyncIterator[str]:
    async for event in events:
        if event is None:
            yield ": keep-alive\n\n"
        else:
            yield f"id: {event.id}\ndata: {finite_json.dumps(event.data)}\n\n"


async def events_of(job: Job, request: Request, *, is_new: bool = False) -> AsyncIterator[Event | None]:
    """Yield a job's events to its result; None where a connection that is silent for long needs a sign of life."""
    services, began = services_of(request), time.monotonic()
    if is_new:
        first = {"request_id": job.public_id, "status": "queued", "message": job.message, "timestamp": time.time()}
        yield Event(0, first)
    with services.jobs.pipeline.feed.watch(job.id) as changed:
        shown: dict[str, Any] = {}
        shown_frame: PreviewFrame | None = None
        sent_at = began
        while not services.jobs.pipeline.has_ended(job):
            changed.clear()
            if services.jobs.pipeline.is_deferred(job):
                message = "The worker is shutting down; the job is kept and goes on when it starts again"
                yield Event(
                    job.seq, {"request_id": job.public_id, "status": "error", "message": message, **_times(began)}
                )
                return
            snapshot, frame = _snapshot(services.jobs, services.jobs.pipeline.visible(job)), job.preview
            if snapshot != shown or frame is not shown_frame:
                preview = {} if frame is None or frame is shown_frame else {"preview": _preview(frame)}
                shown, shown_frame, sent_at, seq = snapshot, frame, time.monotonic(), job.seq
                await services.jobs.store.settle(job)
                yield Event(seq, {**snapshot, **preview, **_times(began)})
            elif time.monotonic() - sent_at > KEEP_ALIVE_SECONDS:
                sent_at = time.monotonic()
                yield None
            await asyncio.sleep(MIN_PAUSE_SECONDS)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await changed.wait()
    result = result_of(job, await public_outputs(job, request))
    yield Event(job.seq, {"request_id": job.public_id, "status": "final_result", "result": result, **_times(began)})


def _snapshot(jobs: JobServices, job: Job) -> dict[str, object]:
    return {
        "request_id": job.public_id,
        "status": job.state.value,
        "message": job.message,
        "attempt": job.attempt,
        "progress": job.progress.as_json(),
        "expected_run_seconds": round(jobs.run_clock.seconds_of(job.cost), 1) or None,
        "queue_info": jobs.queue_info.sizes(),
        "queue_position": jobs.queue_info.position_of(job),
        "output_count": len(job.outputs),
    }


def _preview(frame: PreviewFrame) -> dict[str, str]:
    data = base64.b64encode(frame.image).decode()
    return {"node_id": frame.node_id, "mimetype": frame.media_type, "data": data}


def _times(began: float) -> dict[str, float]:
    return {"timestamp": time.time(), "elapsed_time": round(time.monotonic() - began, 3)}
