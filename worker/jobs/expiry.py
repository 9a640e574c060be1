"""Expiry: removes old or excess data from the disk.

Results and their files by age, files also by their sum, fetched inputs that no job needs, dead webhooks, the engine's
temporary files, and, if the operator enables it, the files of its output folder that jobs have claimed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Protocol

import sqlalchemy as sa
import structlog

from darkroom.worker.jobs.outbox import Outbox
from darkroom.worker.jobs.removal import JobRemoval
from darkroom.worker.outputs.claimed_outputs import ClaimedOutputs
from darkroom.worker.outputs.job_folders import JobFolder, folders_in, remove_older, remove_orphans, surplus_folders
from darkroom.worker.settings.jobs import RetentionConfig
from darkroom.worker.storage.database import JOBS
from darkroom.worker.storage.job import JobState
from darkroom.worker.storage.store import JobStore

EXPIRY_SECONDS = 60.0
TEMPORARY_SECONDS = 3600.0

log = structlog.get_logger("expiry")


class ForgetsInputs(Protocol):
    async def forget_unused(self, before_seconds: float, max_bytes: int) -> None: ...


class Expiry:
    """Periodic removal of expired data; `run_forever()` is its task.

    `temporary_folders` are those of engines of our own.
    """

    def __init__(
        self,
        store: JobStore,
        outbox: Outbox,
        config: RetentionConfig,
        inputs: ForgetsInputs,
        claimed_outputs: ClaimedOutputs,
        temporary_folders: Sequence[Path],
        removal: JobRemoval,
        forget_assets: Callable[[int], Awaitable[None]] | None = None,
        forget_checkpoints: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._store = store
        self._outbox = outbox
        self._config = config
        self._inputs = inputs
        self._claimed_outputs = claimed_outputs
        self._temporary_folders = temporary_folders
        self._removal = removal
        self._forget_assets = forget_assets
        self._forget_checkpoints = forget_checkpoints
        self._measured: dict[str, JobFolder] = {}  # folders of ended jobs, which do not change any more

    async def run_forever(self) -> None:
        while True:
            await asyncio.sleep(EXPIRY_SECONDS)
            try:
                await self.remove_expired()
            except Exception:  # noqa: BLE001 - the expiry: a temporary failure of the disk must not end it
                log.exception("expiry failed", retry_in_seconds=EXPIRY_SECONDS)

    async def remove_orphans(self) -> None:
        """Remove folders that a crash left of unknown jobs; called before anything runs."""
        known = {row[0] for row in await self._store.read(sa.select(JOBS.c.id))}
        orphans = await asyncio.to_thread(remove_orphans, self._store.jobs_directory, known)
        if orphans:
            log.info("folders of unknown jobs removed", count=len(orphans))

    async def remove_expired(self) -> None:
        now, config = time.time(), self._config
        await self._outbox.forget_dead_before(int((now - config.dead_webhook_ttl_seconds) * 1000))
        before = now - config.result_ttl_seconds
        for job_id in await self._store.forget_finished_before(int(before * 1000)):
            if not self._store.holds(job_id):  # else a new job has begun under the id, and owns the folder
                await self._removal.remove_folder(job_id)
        await self._keep_sum_of_outputs()
        await self._inputs.forget_unused(before, config.input_max_bytes)
        if self._forget_assets is not None:
            await self._forget_assets(int(before * 1000))
        if self._forget_checkpoints is not None:
            await self._forget_checkpoints()
        for folder in self._temporary_folders:
            await asyncio.to_thread(remove_older, folder, now - TEMPORARY_SECONDS)
        if not any(job.is_at_engine or job.state is JobState.GENERATING for job in self._store.jobs.values()):
            self._claimed_outputs.remove_all()

    async def _keep_sum_of_outputs(self) -> None:
        """Remove the files of the oldest results over the limit; the state of their jobs is kept."""
        live = frozenset(self._store.jobs)
        folders = await asyncio.to_thread(lambda: list(folders_in(self._store.jobs_directory, self._measured)))
        live |= frozenset(self._store.jobs)  # jobs that ended or began meanwhile have changed since
        self._measured = {folder.job_id: folder for folder in folders if folder.job_id not in live}
        for job_id in surplus_folders(folders, live, self._config.output_max_bytes):
            if job_id not in self._store.jobs:
                log.info("output files removed", request_id=job_id)
                await self._removal.remove_folder(job_id)
