"""JobEnds: the ends of jobs while they are being stored, each with its webhooks in one transaction."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from darkroom.worker.errors import StateUnusable
from darkroom.worker.jobs.pipeline.changes import JobChanges
from darkroom.worker.jobs.pipeline.outside_losses import losses_delete
from darkroom.worker.jobs.pipeline.parts import PipelineParts
from darkroom.worker.storage.group_commit import ChangeUnwritable
from darkroom.worker.storage.job import Credentials, Job, JobFailure, JobState
from darkroom.worker.storage.store import JobStore
from darkroom.worker.storage.webhook_rows import WebhookRow, webhook_insert


@dataclass(frozen=True, slots=True)
class Ending:
    """Last state of a job, with its message and failure."""

    state: JobState
    message: str
    failure: JobFailure | None = None


class JobEnds:
    """Jobs as they were before their ends, while these are not on disk."""

    def __init__(
        self,
        store: JobStore,
        parts: PipelineParts,
        changes: JobChanges,
        make_webhooks: Callable[[Job, Credentials | None], Sequence[WebhookRow]],
    ) -> None:
        self._store = store
        self._parts = parts
        self._changes = changes
        self._make_webhooks = make_webhooks
        self._unstored: dict[str, Job] = {}

    def visible(self, job: Job) -> Job:
        """Return a job as it was before its end while that end is not on disk, else the job itself."""
        return self._unstored.get(job.id, job)

    async def store(self, job: Job, ending: Ending) -> None:
        """End a job, release what it held, and wait until its end is on disk."""
        kept = job.credentials
        self._changes.log.hold(job)
        before = self._unstored[job.id] = copy.copy(job)
        before.credentials = None
        job.end(ending.state, ending.message, int(time.time() * 1000), ending.failure)
        self._parts.release(job.id)
        if not await self._store_end(job, kept):
            job.fail_unstored(
                JobFailure(500, "internal_error", "The end of the job cannot be stored; the log has the reason")
            )
            await self._store_end(job, kept)
        del self._unstored[job.id]
        if not job.outputs:
            await asyncio.to_thread(shutil.rmtree, self._store.job_directory(job.id), True)
        if self._parts.checkpoints is not None and not job.is_handed_back:
            await self._parts.checkpoints.remove(job)

    async def _store_end(self, job: Job, kept: Credentials | None) -> bool:
        """Wait until the job's end is on disk, its webhook with it.

        Returns False when it cannot be stored at all.
        """
        writes = [*map(webhook_insert, self._make_webhooks(job, kept)), *losses_delete(job)]
        committed = self._store.save(job, *writes)
        # Nothing may come between the last state and its commit, not even a second cancel.
        while not committed.done():
            with contextlib.suppress(asyncio.CancelledError, StateUnusable):
                await asyncio.shield(committed)
        return not isinstance(committed.exception(), ChangeUnwritable)
