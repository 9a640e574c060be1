"""FallbackMoves: jobs that go to the fallback after they were accepted for our engine."""

from __future__ import annotations

from dataclasses import replace

import structlog

from darkroom.worker.engines.fallback.checks import FallbackChecks
from darkroom.worker.engines.fallback.choice import EngineChoice, choice_for_failure, choice_for_refusal
from darkroom.worker.engines.fallback.fallback_engine import FallbackEngine
from darkroom.worker.engines.fallback.family_choice import choice_of_families
from darkroom.worker.engines.pool import EnginePool
from darkroom.worker.errors import WorkerError
from darkroom.worker.jobs.pipeline.changes import QUEUED_WORDS, JobChanges
from darkroom.worker.jobs.pipeline.fetch import FetchStage
from darkroom.worker.json.values import JsonObject
from darkroom.worker.storage.database import request_update
from darkroom.worker.storage.job import Job
from darkroom.worker.storage.store import JobStore

log = structlog.get_logger("jobs")


class FallbackMoves:
    """Decisions about a job at its beginning, and after its failure. A job moves once, and never back."""

    def __init__(
        self,
        store: JobStore,
        pool: EnginePool,
        fetch: FetchStage,
        changes: JobChanges,
        fallback: FallbackEngine | None,
    ) -> None:
        self._store = store
        self._pool = pool
        self._fetch = fetch
        self._changes = changes
        self._fallback = fallback

    async def before_run(self, job: Job, prompt: JsonObject) -> bool:
        """Move a job whose model files, fetched since it was accepted, are of no family of our engine."""
        if self._fallback is None or job.request.engine:
            return False
        choice = await choice_of_families(self._pool.any_client, prompt)
        return choice is not None and await self._is_moved(job, choice, prompt)

    async def after(self, job: Job, error: WorkerError) -> bool:
        """Move a job that our engine has refused at its beginning, or, if it is to be so, one that has failed there.

        Only where the fallback would take it. Return True for a job that is to run again.
        """
        fallback = self._fallback
        if fallback is None or job.request.engine:
            return False
        choice = choice_for_refusal(error) or (choice_for_failure(error) if fallback.launch.takes_failures else None)
        if choice is None:
            return False
        try:
            prompt = await self._fetch.fetch(job)
        except WorkerError as unfetched:
            log.info("failed job not given to the fallback", request_id=job.id, reason=unfetched.message)
            return False
        return await self._is_moved(job, choice, prompt)

    async def _is_moved(self, job: Job, choice: EngineChoice, prompt: JsonObject) -> bool:
        fallback = self._fallback
        assert fallback is not None
        try:
            keys = () if job.credentials is None else tuple(job.credentials.partner_keys)
            await FallbackChecks(fallback, keys).check(prompt)
        except WorkerError as refused:
            log.info("job refused by the fallback", request_id=job.id, reason=refused.message)
            return False
        fallback.uses.add(choice)
        log.warning("job given to the fallback", request_id=job.id, reason=choice.reason)
        job.request = replace(job.request, engine=choice.name, engine_reason=choice.reason)
        job.is_at_engine = job.needs_less_memory = False
        job.progress.begin_again()
        job.note(QUEUED_WORDS, job.waiting_stage)
        self._store.save(job, request_update(job))
        self._changes.feed.notify(job.id)
        return True
