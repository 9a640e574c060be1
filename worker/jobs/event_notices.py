"""EventNotices: webhook notices of a job's acceptance, start and progress, for requests that ask for them.

Unlike the notice of the end, these are best-effort: sent once, kept in memory only, one at a time. Each contains the
newest state when the receiver is ready for it. None is sent after the job has ended. `seq` and `percent` never
decrease.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import structlog

from darkroom.worker.jobs.outbox import Sender, secret_of, signed_row
from darkroom.worker.jobs.pipeline.feed import JobFeed
from darkroom.worker.json import finite as finite_json
from darkroom.worker.json.values import JsonObject
from darkroom.worker.settings.outputs import WebhookConfig
from darkroom.worker.storage.job import Job, JobState, WebhookEvent, WebhookTarget
from darkroom.worker.storage.webhook_rows import WebhookRow, WebhookState

PROGRESS_SECONDS = 2.0
"""The minimum interval between two progress notices of one job."""

log = structlog.get_logger("webhooks")


@dataclass(frozen=True, slots=True)
class SentNotices:
    """The state of a job as last sent to the receiver. `at_seconds` is monotonic."""

    was_queued: bool = False
    has_started: bool = False
    percent: float = 0.0
    at_seconds: float = float("-inf")


def next_notice(
    job: Job, events: tuple[WebhookEvent, ...], sent: SentNotices, now_seconds: float
) -> WebhookEvent | None:
    """Return the event to send now, or None. Pure."""
    if not sent.was_queued and "queued" in events and not job.is_recovered:
        return "queued"
    if not has_begun(job):
        return None
    if not sent.has_started and "started" in events:
        return "started"
    is_time = now_seconds >= sent.at_seconds + PROGRESS_SECONDS
    return "progress" if "progress" in events and is_time and job.progress.percent > sent.percent else None


def has_begun(job: Job) -> bool:
    """Return True once an engine has begun with a job."""
    return job.state not in (JobState.PENDING, JobState.PROCESSING)


def notice_body(job: Job, event: WebhookEvent, extra: JsonObject) -> dict[str, object]:
    """Return the body of a notice: the known fields of the final notice, and the event's own."""
    body: dict[str, Any] = {
        "id": job.public_id,
        "event": event,
        "status": job.state.value,
        "message": job.message,
        "output": [],
        "timings": job.times.as_json(),
        "progress": job.progress.as_json(),
        "seq": job.seq,
    }
    if job.metadata:
        body["metadata"] = dict(job.metadata)
    return body | ({"extra": dict(extra)} if extra else {})


class EventNotices:
    """One task for each running job whose webhook asks for events."""

    def __init__(
        self,
        feed: JobFeed,
        sender: Sender,
        config: WebhookConfig,
        clock: Callable[[], float] = time.monotonic,
        traceparent_of: Callable[[Job], str] = lambda job: job.request.traceparent,
    ) -> None:
        self._feed = feed
        self._sender = sender
        self._config = config
        self._clock = clock
        self._traceparent_of = traceparent_of
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def follow(self, job: Job) -> None:
        """Start the notices of a job that has been accepted. A further call has no effect."""
        target = job.request.webhook
        if target is None or not target.events or job.id in self._tasks:
            return
        task = asyncio.create_task(self._notify(job, target), name=f"events-{job.id}")
        self._tasks[job.id] = task
        task.add_done_callback(lambda _: self._tasks.pop(job.id, None))

    def leave(self, job: Job) -> None:
        """Stop the notices of a job that has ended."""
        task = self._tasks.get(job.id)
        if task is not None:
            task.cancel()

    async def stop(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _notify(self, job: Job, target: WebhookTarget) -> None:
        sent = SentNotices()
        with self._feed.watch(job.id) as changed:
            while not job.state.is_terminal:
                changed.clear()
                now = self._clock()
                event = next_notice(job, target.events, sent, now)
                if event is not None:
                    percent = job.progress.percent if event == "progress" else sent.percent
                    at_seconds = sent.at_seconds if event == "queued" else now
                    sent = SentNotices(True, sent.has_started or event != "queued", percent, at_seconds)
                    await self._send(job, target, event)
                    continue
                pause = max(0.05, sent.at_seconds + PROGRESS_SECONDS - now) if "progress" in target.events else None
                with suppress(TimeoutError):
                    is_due_later = has_begun(job) and job.progress.percent > sent.percent
                    async with asyncio.timeout(pause if is_due_later else None):
                        await changed.wait()

    async def _send(self, job: Job, target: WebhookTarget, event: WebhookEvent) -> None:
        try:
            outcome = await self._sender.deliver(signed_row(self._row(job, target, event), self._config))
        except Exception:  # noqa: BLE001 - a best-effort notice: the job continues without it
            log.exception("event notice failed", request_id=job.id)
            return
        if not outcome.is_delivered:
            log.info("event notice rejected", request_id=job.id, event=event, reason=outcome.error)

    def _row(self, job: Job, target: WebhookTarget, event: WebhookEvent) -> WebhookRow:
        secret, source = secret_of(job.credentials, self._config, target.url)
        now_ms = int(time.time() * 1000)
        return WebhookRow(
            id=f"msg_{uuid.uuid4().hex}",
            job_id=job.id,
            url=target.url,
            body=finite_json.dumps(notice_body(job, event, target.extra_params)).encode(),
            secret=secret,
            timeout_seconds=target.timeout_seconds,
            is_trusted=target.url == self._config.url,
            state=WebhookState.PENDING,
            attempts=0,
            created_ms=now_ms,
            next_at_ms=now_ms,
            secret_source=source,
            traceparent=self._traceparent_of(job),
        )
