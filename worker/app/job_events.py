"""JobEvents: what follows in the front when a job is accepted, starts and ends."""

from __future__ import annotations

import asyncio
import time
from functools import partial

from darkroom.worker.api.services import Services
from darkroom.worker.jobs.event_notices import EventNotices
from darkroom.worker.jobs.outbox import webhooks_of
from darkroom.worker.jobs.pace_file import PaceFile
from darkroom.worker.observe.metrics import EndedJob
from darkroom.worker.outputs.public import public_record
from darkroom.worker.storage.job import Credentials, Job, JobState
from darkroom.worker.storage.webhook_rows import WebhookRow

PACE_DELAY_SECONDS = 1.0


class JobEvents:
    """Owner of the notices of jobs under way, and of the pace on disk. Its methods are the pipeline's hooks."""

    def __init__(self, services: Services, notices: EventNotices, pace: PaceFile) -> None:
        self._services = services
        self._notices = notices
        self._pace = pace
        self._pace_writing: asyncio.Task[None] | None = None

    def webhooks(self, job: Job, kept: Credentials | None) -> list[WebhookRow]:
        """Return the webhooks to store with a job's end."""
        if job.is_handed_back or job.request.webhook is None:
            return []  # handed back: the worker that ends it sends it
        base = self._services.deliveries.outputs.public_url or job.request.base_url
        link = partial(self._link, base, job.id) if base else None
        shows_folders = self._services.deliveries.shows_folders
        outputs = [public_record(record, link, shows_folders=shows_folders) for record in job.outputs]
        return webhooks_of(job, kept, self._services.deliveries.webhook, outputs)

    def accepted(self, job: Job) -> None:
        """Send the notices of a job from now on."""
        self._notices.follow(job)

    def started(self, job: Job) -> None:
        """Report that an engine has begun with a job."""
        self._services.platform.autoscaler.job_started(job.id)
        if job.attempt == 1:  # else the first run is in it
            self._services.observation.metrics.job_started(time.time() - job.times.queued_at_ms / 1000)

    def ended(self, job: Job) -> None:
        """Report a job's end to the platform, the metrics, the quota, the estimate of waiting and the outbox."""
        services = self._services
        services.platform.autoscaler.job_ended(job.id, job.state)
        self._notices.leave(job)
        services.observation.metrics.job_ended(
            EndedJob(
                job.state.value,
                job.times.phase_ms,
                ((job.times.completed_at_ms or job.times.queued_at_ms) - job.times.queued_at_ms) / 1000,
                job.run_seconds,
                len(job.outputs),
                None if job.failure is None else job.failure.code,
            )
        )
        services.files.caller_quota.job_ended(job)
        if job.run_seconds is not None:
            is_good = job.state is JobState.COMPLETED
            services.jobs.run_clock.add(job.run_seconds, job.cost, len(job.outputs) if is_good else 0)
            self._keep_pace()
        if job.request.webhook is not None:
            services.deliveries.outbox.wake()

    async def stop(self) -> None:
        """Stop the notices, and store the pace if jobs have changed it."""
        await self._notices.stop()
        if self._pace_writing is not None:
            self._pace_writing.cancel()
            await asyncio.to_thread(self._pace.write, self._services.jobs.run_clock.known_runs)

    def _link(self, base: str, job_id: str, path: str) -> str:
        return self._services.deliveries.links.link(base, job_id, path, time.time())

    def _keep_pace(self) -> None:
        """Store the pace for the next start, now or when the last storing has ended."""
        if self._pace_writing is None or self._pace_writing.done():
            self._pace_writing = asyncio.create_task(self._write_pace(), name="pace-write")

    async def _write_pace(self) -> None:
        await asyncio.sleep(PACE_DELAY_SECONDS)  # for many short jobs one write
        await asyncio.to_thread(self._pace.write, self._services.jobs.run_clock.known_runs)
