"""GenerateStage: a job is fetched and run until there is an outcome, and its files are collected.

It runs again when its engine was lost, when memory was short, and when its prompt was taken back for another job.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import structlog

from darkroom.worker.engines.client.client import EngineClient
from darkroom.worker.engines.client.lost import EngineLost, PromptRecalled
from darkroom.worker.engines.loss import Loss, LossReason, error_of_loss
from darkroom.worker.engines.outcome import RunOutcome
from darkroom.worker.errors import (
    EngineCrashed,
    EngineUnreachable,
    JobCancelled,
    OutOfMemory,
    RequestRejected,
    WorkerError,
)
from darkroom.worker.jobs.asked_names import in_asked_names
from darkroom.worker.jobs.pipeline.changes import QUEUED_WORDS, JobChanges
from darkroom.worker.jobs.pipeline.deliver import DeliverStage
from darkroom.worker.jobs.pipeline.durations import record_run
from darkroom.worker.jobs.pipeline.engine_turns import EngineTurns
from darkroom.worker.jobs.pipeline.fallback_moves import FallbackMoves
from darkroom.worker.jobs.pipeline.fetch import FetchStage
from darkroom.worker.jobs.pipeline.outside_losses import losses_update, restore_losses
from darkroom.worker.jobs.pipeline.run import RunStage
from darkroom.worker.jobs.preemption import PromptPreempted
from darkroom.worker.json.values import JsonObject, object_at
from darkroom.worker.storage.job import Job, JobState, Stage
from darkroom.worker.storage.store import JobStore

LOST_PAUSE_SECONDS = 0.25
MAX_OUTSIDE_LOSSES = 10  # of engines during one job, by other causes than the job, before they cost attempts
MAX_LOSSES = 1000  # of an engine for which a job waited; how often one is started again has a limit of its own

log = structlog.get_logger("jobs")


class GenerateStage:
    """Attempts of jobs, and what each loss of an engine costs them."""

    def __init__(
        self,
        store: JobStore,
        engines: EngineTurns,
        fetch: FetchStage,
        run: RunStage,
        deliver: DeliverStage,
        changes: JobChanges,
        moves: FallbackMoves,
    ) -> None:
        self._store = store
        self._engines = engines
        self._fetch = fetch
        self._run = run
        self._deliver = deliver
        self._changes = changes
        self._moves = moves

    async def generate(self, job: Job) -> None:
        """Fetch, run and collect, a second time when the engine was lost during the run or memory was short."""
        if job.is_recovered:
            await restore_losses(self._store.facts, job)
        outcome, engine = await self._outcome_anywhere(job)
        if outcome.warnings:  # once each, also where a job ran twice
            known = [warning for warning in outcome.warnings if warning not in job.request.warnings]
            job.request = replace(job.request, warnings=(*job.request.warnings, *known))
        if outcome.error is not None:
            if isinstance(outcome.error, OutOfMemory):
                outcome.error.fields["attempts"] = job.attempt
            raise outcome.error
        if outcome.was_interrupted:
            raise JobCancelled("Another client of the engine interrupted this job")
        await self._deliver.collect(job, outcome, engine)

    async def _outcome_anywhere(self, job: Job) -> tuple[RunOutcome, EngineClient]:
        """Return the outcome of a job, at the fallback where our engine has refused or failed it and it may move."""
        try:
            outcome, engine = await self._outcome_of(job)
        except (RequestRejected, EngineCrashed) as error:
            if not await self._moves.after(job, error):
                raise
        else:
            if outcome.error is None or not await self._moves.after(job, outcome.error):
                return outcome, engine
        return await self._outcome_of(job)

    async def _outcome_of(self, job: Job) -> tuple[RunOutcome, EngineClient]:
        may_be_there, num_losses = job.is_recovered, 0
        prompt: JsonObject | None = None
        while True:
            try:
                prompt = prompt or await self._fetch.fetch(job)
                if await self._moves.before_run(job, prompt):
                    prompt = None
                    continue
                self._fetch.queue_for_engine(job)
                queued_at = time.monotonic()
                try:
                    outcome, engine = await self._attempt(job, prompt, may_be_there)
                except RequestRejected as rejected:
                    raise in_asked_names(rejected, job.prompt, prompt) from None
                finally:
                    record_run(job, queued_at, time.monotonic())
                if not isinstance(outcome.error, OutOfMemory) or not await self._retry_with_less_memory(job, engine):
                    return outcome, engine
                may_be_there, prompt = False, None
            except PromptRecalled:
                job.is_at_engine = may_be_there = False
                self._changes.queue_again(job)
            except PromptPreempted:
                job.is_at_engine = may_be_there = False
                job.num_preempted += 1
                job.progress.begin_again()
                self._changes.queue_again(job)
            except EngineLost as lost:
                job.is_at_engine, prompt = False, None
                # Perhaps only the reply was lost; but a result of a failed device is not used.
                may_be_there = lost.loss.reason is not LossReason.DEVICE_LOST
                if (num_losses := num_losses + 1) > MAX_LOSSES:
                    raise EngineUnreachable("The engine was lost repeatedly before the job began") from None
                self._note_loss(job, lost)
                await asyncio.sleep(LOST_PAUSE_SECONDS)  # until the pool has registered the loss

    async def _attempt(self, job: Job, prompt: JsonObject, may_be_there: bool) -> tuple[RunOutcome, EngineClient]:
        """Run a job, or await the run that an engine has already."""
        holder = await self._engines.holder_of(job.prompt_id) if may_be_there else None
        if holder is None and job.stage is Stage.RUNNING:
            went_with_the_front = job.is_recovered and self._run.restarts_engines
            if not (went_with_the_front and self._goes_on(job, Loss(LossReason.GONE, is_outside=True))):
                self._retry(job)
        return await self._run.run(job, prompt, holder)

    def _note_loss(self, job: Job, lost: EngineLost) -> None:
        """Record that a job lost its engine. Raises the error of a loss that it caused itself."""
        if lost.is_culprit and lost.loss.reason.is_hang:
            raise self._error_of_loss(job, lost.loss) from None
        job.runs_alone |= lost.is_suspect
        if lost.was_running and lost.loss.is_outside and self._goes_on(job, lost.loss):
            pass
        elif lost.was_running:
            job.last_loss = lost.loss
            self._changes.move(job, JobState.GENERATING, QUEUED_WORDS, Stage.RUNNING)
        elif (
            lost.is_bystander or job.stage is not Stage.RUNNING
        ):  # else it was lost while it ran, and now once more before it could
            job.note(QUEUED_WORDS, job.waiting_stage)
        self._changes.changed(job)

    async def _retry_with_less_memory(self, job: Job, engine: EngineClient) -> bool:
        """Prepare the next attempt of a job that ran out of memory. Return False when none is left."""
        job.needs_less_memory = True
        if not job.begin_retry(QUEUED_WORDS):
            return False
        log.warning("job retried with less memory", request_id=job.id)
        self._changes.changed(job)
        await engine.calls.free()
        return True

    def _goes_on(self, job: Job, loss: Loss) -> bool:
        """Let a job run again that lost its engine by a cause outside of it, without costing it an attempt.

        Returns False when that has happened too often. The number outlives the front, which may have been killed, too.
        """
        job.last_loss = loss
        job.num_outside_losses += 1
        if job.num_outside_losses > MAX_OUTSIDE_LOSSES:
            return False
        job.progress.begin_again()
        job.note(QUEUED_WORDS, job.waiting_stage)
        log.warning("job continued after outside loss", request_id=job.id, num_losses=job.num_outside_losses)
        self._store.save(job, losses_update(job))
        self._changes.feed.notify(job.id)
        return True

    def _retry(self, job: Job) -> None:
        """Begin the next attempt. Raises the error of the engine's loss when none is left."""
        loss = job.last_loss or Loss(LossReason.GONE)
        if loss.reason is LossReason.OUT_OF_MEMORY:
            job.needs_less_memory = True
        if not job.begin_retry(QUEUED_WORDS):
            raise self._error_of_loss(job, loss)
        reason, where = loss.reason.value, job.progress.node_id
        log.warning("job retried after engine loss", request_id=job.id, reason=reason, node_id=where)
        self._changes.changed(job)

    def _error_of_loss(self, job: Job, loss: Loss) -> WorkerError:
        where = job.progress.node_id
        class_type = object_at(job.prompt, where or "").get("class_type")
        return error_of_loss(loss, job.attempt, where, None if class_type is None else str(class_type))
