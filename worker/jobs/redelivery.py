"""Redelivery: the files of an ended job that are in no store yet are uploaded again, without GPU time."""

from __future__ import annotations

import asyncio
from collections import defaultdict

from darkroom.worker.errors import JobNotEnded, JobNotFound, Problem, RequestRejected
from darkroom.worker.jobs.delivered_outputs import DeliveredOutputs
from darkroom.worker.storage.job import Credentials, Job
from darkroom.worker.storage.store import JobStore


class Redelivery:
    """Uploads of ended jobs on request, one at a time for each job."""

    def __init__(self, store: JobStore, outputs: DeliveredOutputs) -> None:
        self._store = store
        self._outputs = outputs
        self._at_once: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def deliver(self, job: Job, credentials: Credentials) -> None:
        """Upload what is not uploaded, to the store of `credentials`, else the operator's. The job has the outcome.

        A file that fails again keeps its `upload_error`. Raises JobNotEnded, RequestRejected, StateUnusable.
        """
        if not job.state.is_terminal:
            raise JobNotEnded("The job has not ended; expected an ended one", request_id=job.public_id)
        if not self._outputs.has_target(credentials):
            message = "no store: that of the request was erased when the job ended; expected s3, put or hf in the body"
            raise RequestRejected([Problem(message, field="body", type="missing")])
        lock = self._at_once[job.id]
        try:
            async with lock:
                directory = self._store.job_directory(job.id)
                job.outputs = tuple(await self._outputs.send_again(job, credentials, directory))
                current = await self._store.find(job.id)
                if current is None or current.number != job.number:  # deleted meanwhile
                    raise JobNotFound(f"job {job.public_id}: no such id")
                await self._store.save(job)
        finally:
            if not lock.locked():
                self._at_once.pop(job.id, None)
