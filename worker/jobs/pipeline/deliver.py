"""DeliverStage: the files of a run are collected into the job's folder, processed and sent away."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import time
from collections.abc import Sequence
from itertools import count

import structlog

from darkroom.worker.concurrency.backoff import Backoff
from darkroom.worker.engines.client.client import EngineClient
from darkroom.worker.engines.outcome import RunOutcome
from darkroom.worker.errors import EngineUnreachable, NothingMade, StateUnusable
from darkroom.worker.jobs.pipeline.changes import JobChanges
from darkroom.worker.jobs.pipeline.durations import milliseconds_since
from darkroom.worker.jobs.protocols import JobOutputs
from darkroom.worker.outputs.delivered import OutputRecord
from darkroom.worker.storage.job import Job, JobState, Stage
from darkroom.worker.storage.store import JobStore

COLLECT_BACKOFF = Backoff(first_seconds=0.1, longest_seconds=16.0, factor=4.0)
COLLECT_TRIES = 7  # within 40 seconds

log = structlog.get_logger("jobs")


class DeliverStage:
    """Outputs of jobs, from the engine to where the request or the operator wants them."""

    def __init__(self, store: JobStore, outputs: JobOutputs, changes: JobChanges) -> None:
        self._store = store
        self._outputs = outputs
        self._changes = changes

    async def collect(self, job: Job, outcome: RunOutcome, engine: EngineClient) -> None:
        """Collect the files of a run, after which the job is generated. Raises NothingMade."""
        records = await self._collected(job, outcome, engine)
        if not records:
            raise NothingMade("The workflow ran and saved nothing")
        job.outputs = tuple(records)
        job.engine_response = outcome.entry if job.request.wants_engine_response else {}
        job.tuning = outcome.tuning
        job.progress.finish()
        message = "Generation complete. Queued for post-processing."
        self._changes.move(job, JobState.GENERATED, message, Stage.DELIVERING)
        if self._outputs.sends_away(job):
            with contextlib.suppress(StateUnusable):  # then the job's end waits for the disk
                await asyncio.shield(self._store.save(job))  # so that it is never generated again

    async def _collected(self, job: Job, outcome: RunOutcome, engine: EngineClient) -> Sequence[OutputRecord]:
        """Return the records of a run's files.

        An engine that is unreachable for a while is waited for: the images are not generated again.
        """
        directory = self._store.job_directory(job.id)
        for number in count(1):
            try:
                return await self._outputs.collect(job, outcome, directory, engine)
            except EngineUnreachable as error:
                if number == COLLECT_TRIES:
                    raise
                pause = COLLECT_BACKOFF.seconds(number)
                shown = {"reason": str(error), "retry_in_seconds": round(pause, 3)}
                log.warning("output collection failed", request_id=job.id, **shown)
                await asyncio.to_thread(shutil.rmtree, directory, True)
                await asyncio.sleep(pause)
        raise AssertionError("a loop without an end has ended")

    async def deliver(self, job: Job) -> None:
        """Process the collected files and send them away."""
        began = time.monotonic()
        job.outputs = tuple(await self._outputs.deliver(job, self._store.job_directory(job.id)))
        job.times.add("postprocess", milliseconds_since(began))
