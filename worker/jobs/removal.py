"""JobRemoval: removes the files of jobs, and whole jobs on request."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import uuid
from collections.abc import Callable

from darkroom.worker.errors import JobNotEnded
from darkroom.worker.storage.job import Job
from darkroom.worker.storage.store import JobStore

ASIDE_PREFIX = ".gone-"


class JobRemoval:
    """Removal of ended jobs. `on_removed` is called with the id of each job whose files are removed."""

    def __init__(self, store: JobStore, on_removed: Callable[[str], None] = lambda job_id: None) -> None:
        self._store = store
        self._on_removed = on_removed

    async def delete(self, job: Job) -> None:
        """Remove an ended job with its files and its webhooks, delivered or not.

        Raises JobNotEnded, StateUnusable.
        """
        if not job.state.is_terminal:
            message = f"The job has not ended ({job.state.value}); expected an ended one, cancel it first"
            raise JobNotEnded(message, request_id=job.public_id)
        await self._store.delete_ended(job)
        if not self._store.holds(job.id):  # else a new job has begun under the id, and owns the folder
            await self.remove_folder(job.id)

    async def remove_folder(self, job_id: str) -> None:
        """Rename a folder at once, then remove it: a new job may begin under the same id meanwhile."""
        self._on_removed(job_id)
        aside = self._store.jobs_directory / f"{ASIDE_PREFIX}{uuid.uuid4().hex}"  # no id begins so
        with contextlib.suppress(FileNotFoundError):
            self._store.job_directory(job_id).rename(aside)
            await asyncio.to_thread(shutil.rmtree, aside, True)
