"""RunStage: one run of a job's prompt at an engine, from the job's turn to the outcome."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial

from darkroom.contract.wire import ARRIVING_KEY, PREVIEW_METHOD_KEY, QUALITY_KEY
from darkroom.worker.engines.client.client import EngineClient
from darkroom.worker.engines.client.lost import EngineLost
from darkroom.worker.engines.low_memory_retry import tiled_prompt
from darkroom.worker.engines.outcome import RunOutcome
from darkroom.worker.engines.pool import EnginePool
from darkroom.worker.engines.socket_images import with_saved_images
from darkroom.worker.errors import EngineAnswerInvalid, EngineUnreachable
from darkroom.worker.jobs.fair_turns import FairTurns
from darkroom.worker.jobs.pipeline.changes import JobChanges
from darkroom.worker.jobs.pipeline.engine_turns import EngineTurns
from darkroom.worker.jobs.pipeline.parts import PipelineLimits, PipelineParts
from darkroom.worker.jobs.preemption import Preemption
from darkroom.worker.jobs.split_runs import RunPart, SplitRuns, num_engines_of
from darkroom.worker.json.values import JsonObject
from darkroom.worker.storage.job import Job
from darkroom.worker.storage.store import JobStore


class RunStage:
    """The turns of jobs for an engine, the runs that may make way for others, and those that are divided."""

    def __init__(
        self,
        store: JobStore,
        pool: EnginePool,
        engines: EngineTurns,
        parts: PipelineParts,
        limits: PipelineLimits,
        changes: JobChanges,
    ) -> None:
        self._pool = pool
        self._engines = engines
        self._inputs = parts.inputs
        self._models = parts.models
        self._checkpoints = parts.checkpoints
        self._changes = changes
        self._timeout_seconds = limits.job_timeout_seconds
        self._turns = FairTurns(limits.num_running_of_caller, store.turn_ms)
        self._preemption = Preemption(limits.preempt_priority)
        self._split_runs = SplitRuns(pool)

    @property
    def restarts_engines(self) -> bool:
        """True if the engines are ours, and end with the front."""
        return self._pool.restarts_engines

    async def run(self, job: Job, prompt: JsonObject, holder: EngineClient | None) -> tuple[RunOutcome, EngineClient]:
        """Run a job at `holder`, which has its prompt already, or at the engine whose turn comes first."""
        async with (
            self._turns.turn(job, is_inside=holder is not None),  # which may change the order
            self._way_made(job) as has_slot,
            self._engines.engine(job, holder) as engine,
        ):
            has_slot()
            job.is_recovered, job.is_at_engine = False, True
            self._changes.log.hold(job)
            prompt = await self._placed(job, prompt, engine)
            job.began_at = began = time.monotonic()
            outcome = await self._run_at(job, prompt, engine, began, is_there=holder is not None)
            self._changes.started(job, began)  # unless a message has reported it
            job.is_at_engine = False
            job.run_seconds = (time.monotonic() - max(began, job.began_at)) * num_engines_of(outcome)
            return outcome, engine

    async def _placed(self, job: Job, prompt: JsonObject, engine: EngineClient) -> JsonObject:
        """Return the prompt as one engine takes it, after sending it the files that it lacks. Raises EngineLost."""
        try:
            prompt = with_saved_images(await self._inputs.place(prompt, engine))
            return tiled_prompt(prompt, await engine.object_info()) if job.needs_less_memory else prompt
        except EngineAnswerInvalid:
            raise
        except EngineUnreachable as error:
            raise EngineLost(error.message) from None

    async def _run_at(
        self, job: Job, prompt: JsonObject, engine: EngineClient, began: float, *, is_there: bool
    ) -> RunOutcome:
        extra = {**job.request.extra, **self._inputs.scope(prompt, engine), **_generation_of(job, engine)}
        if job.request.engine and job.credentials is not None:
            extra |= job.credentials.partner_keys
        downloads = None if self._models is None else self._models.downloads_of(job.id)
        if downloads is not None:
            extra[ARRIVING_KEY] = list(downloads.places)
        shows_previews = job.request.wants_previews
        async with self._checkpoint(job, engine) as checkpoint:

            def run_part(part: RunPart) -> Awaitable[RunOutcome]:
                return part.engine.runner.run(
                    part.prompt,
                    part.prompt_id,
                    part.reports(partial(self._changes.on_message, job)),
                    timeout_seconds=self._seconds_left(job, since=began if part.is_again else None),
                    extra_data={**extra, **(checkpoint if part.is_first else {})},
                    is_there=is_there,
                    traceparent=self._changes.spans.traceparent_of(job),
                    on_preview=partial(self._changes.on_preview, job) if shows_previews and part.is_first else None,
                    targets=part.targets,
                )

            run = self._split_runs.run(job, prompt, engine, run_part, is_there=is_there)
            self._preemption.make_way_at(engine, job)
            run = run if downloads is None else downloads.beside(run)
            return await self._preemption.run(job, engine, run)

    def _seconds_left(self, job: Job, *, since: float | None) -> float:
        """Return the time that a run may take; `since` is when the job's first part began, None for that one."""
        allowed = min(self._timeout_seconds, job.request.timeout_seconds or math.inf)
        return allowed if since is None else max(0.0, allowed - (time.monotonic() - since))

    @contextlib.asynccontextmanager
    async def _way_made(self, job: Job) -> AsyncIterator[Callable[[], object]]:
        """Let other jobs make way while a job waits for an engine; yield the function to call when it has one."""
        making = asyncio.create_task(self._preemption.make_way(job), name=f"preempt-{job.id}")
        try:
            yield making.cancel
        finally:
            making.cancel()

    def _checkpoint(self, job: Job, engine: EngineClient) -> contextlib.AbstractAsyncContextManager[JsonObject]:
        """Return the context that yields the fields of a job's checkpoint, none for an engine that is foreign."""
        if self._checkpoints is None or not engine.has_check:
            return contextlib.nullcontext({})
        return self._checkpoints.of(job)


def _generation_of(job: Job, engine: EngineClient) -> dict[str, str]:
    """Return the requested quality and previews; a foreign engine has no qualities."""
    previews = {PREVIEW_METHOD_KEY: "auto"} if job.request.wants_previews else {}
    return {QUALITY_KEY: job.request.quality, **previews} if engine.has_check else previews
