"""Pipeline: takes jobs through fetch, run, collect, deliver and report. `_run_job` is the whole way on one screen.

Every job is one task. Inputs of the next jobs are fetched, and outputs of the last ones delivered, while the engine
works. A job that has ended is stored, with its webhook, in one transaction.
"""

from __future__ import annotations

import asyncio
import time

import structlog
from structlog.contextvars import bind_contextvars

from darkroom.worker.engines.pool import EnginePool
from darkroom.worker.errors import DiskLow, Draining, JobCancelled, JobExpired, JobTimedOut, WorkerError
from darkroom.worker.jobs.job_log import JobLog
from darkroom.worker.jobs.job_spans import JobSpans
from darkroom.worker.jobs.pipeline.changes import JobChanges
from darkroom.worker.jobs.pipeline.deliver import DeliverStage
from darkroom.worker.jobs.pipeline.ends import Ending, JobEnds
from darkroom.worker.jobs.pipeline.engine_turns import EngineTurns
from darkroom.worker.jobs.pipeline.fallback_moves import FallbackMoves
from darkroom.worker.jobs.pipeline.fetch import FetchStage
from darkroom.worker.jobs.pipeline.generate import GenerateStage
from darkroom.worker.jobs.pipeline.parts import PipelineHooks, PipelineLimits, PipelineParts
from darkroom.worker.jobs.pipeline.run import RunStage
from darkroom.worker.jobs.pipeline.tasks import JobTasks
from darkroom.worker.jobs.queue_deadlines import QueueDeadlines, seconds_left
from darkroom.worker.models.demo_model import note_on
from darkroom.worker.storage.job import Job, JobFailure, JobState, Stage
from darkroom.worker.storage.store import JobStore

log = structlog.get_logger("jobs")

STORE_SECONDS = 2.0  # for which a reply waits for a state to be on disk
FRESH_SECONDS = 10.0
MAX_BROKEN = 10
FAILED_WORDS = {
    Stage.QUEUED: "Preprocessing",
    Stage.FETCHING: "Preprocessing",
    Stage.WAITING: "Generation",
    Stage.LOW_MEMORY_RETRY: "Generation",
    Stage.RUNNING: "Generation",
    Stage.DELIVERING: "Post-processing",
}
WAITING = "waiting"
"""State under which jobs that wait for an engine are counted."""


class Pipeline:
    """Tasks of the jobs that have not ended, from the inputs' fetch to the outputs' delivery."""

    def __init__(
        self,
        store: JobStore,
        pool: EnginePool,
        parts: PipelineParts,
        limits: PipelineLimits,
        hooks: PipelineHooks,
        *,
        job_log: JobLog | None = None,
        spans: JobSpans | None = None,
    ) -> None:
        self._store = store
        self._pool = pool
        self._hooks = hooks
        self._changes = changes = JobChanges(store, parts.models, hooks.on_start, job_log, spans)
        self.feed = changes.feed
        self._deliver = DeliverStage(store, parts.outputs, changes)
        engines = EngineTurns(pool, parts.fallback)
        fetch = FetchStage(store, engines, parts, limits, changes)
        run = RunStage(store, pool, engines, parts, limits, changes)
        moves = FallbackMoves(store, pool, fetch, changes, parts.fallback)
        self._generate = GenerateStage(store, engines, fetch, run, self._deliver, changes, moves)
        self._ends = JobEnds(store, parts, changes, hooks.make_webhooks)
        self._tasks = JobTasks()
        self._deadlines = QueueDeadlines(self._expire)
        self._broken: list[str] = []
        self._has_recovered = False
        self._is_draining = False
        self._drain_ended = asyncio.Event()

    def start(self, job: Job) -> None:
        """Start a stored job, or resume it after a restart.

        While draining it stays stored, unless it is to end as cancelled. A job that is just being admitted may have
        been begun, and ended, by a cancellation: it is never begun twice.
        """
        is_deferred = self._is_draining and not self._tasks.is_cancelled(job.id)
        if is_deferred or job.state.is_terminal or job.id in self._tasks:
            return
        task = self._tasks.start(job.id, self._run_job(job))
        task.add_done_callback(lambda _: self._leave(job, task))
        self._deadlines.begin(job)
        self._hooks.on_accepted(job)

    def recover(self) -> int:
        """Start every job that the last front left unfinished; return their number.

        The running one is run once more.
        """
        self._has_recovered = True
        jobs = sorted(
            (job for job in self._store.jobs.values() if job.id not in self._tasks), key=lambda job: job.order
        )
        for job in jobs:
            self.start(job)
        return len(jobs)

    async def refuse(self, job: Job, error: WorkerError) -> None:
        """Store a job that cannot begin, and end it with an error like any other job, with its webhook.

        Raises StateUnusable; the job is not stored then.
        """
        await self._store.insert(job)
        await self._end(job, Ending(JobState.FAILED, error.message, JobFailure.of(error)))

    def cancel(self, job: Job) -> bool:
        """End a job as cancelled, in whatever state it is. Safe to call twice.

        Returns False when it has ended already.
        """
        if job.state.is_terminal:
            return False
        self._tasks.cancel(job.id)
        if job.id not in self._tasks:  # left by the last front, and no engine is up yet; or for the next one
            self.start(job)
        return True

    def watch_deadlines(self) -> None:
        """Start the timers of stored jobs that may expire before an engine is up."""
        for job in self._store.jobs.values():
            self._deadlines.begin(job)

    def _expire(self, job: Job) -> None:
        """End a job that no engine has begun in time. While draining it expires at the next start."""
        self._tasks.expire(job.id)
        if job.id not in self._tasks:
            self.start(job)

    async def wait_for_end(self, job: Job) -> None:
        """Wait until the job's last state is on disk. Raises Draining when the job is deferred to the next start."""
        await self._until_end(job)

    async def check_end(self, job: Job) -> None:
        """Wait a moment until the job's last state is on disk. Raises DiskLow while the disk refuses it, Draining."""
        try:
            async with asyncio.timeout(STORE_SECONDS):
                await self._until_end(job)
        except TimeoutError:
            message = f"The end of the job waits for the disk: {self._store.database.problem or 'it is being written'}"
            raise DiskLow(message, retry_after_seconds=5, request_id=job.public_id) from None

    async def shown(self, job: Job) -> Job:
        """Return a job as it may be shown now: an end only once it is on disk, else what was before it.

        Waits a moment for the disk, which may refuse every write.
        """
        if not job.state.is_terminal:
            await self._store.settle(job)
            return job
        try:
            await self.check_end(job)
        except DiskLow:
            return self.visible(job)
        return job

    def visible(self, job: Job) -> Job:
        """Return a job as it was before its end while that end is not on disk, else the job itself."""
        return self._ends.visible(job)

    async def _until_end(self, job: Job) -> None:
        with self.feed.watch(job.id) as changed:
            while not self.has_ended(job):
                if self.is_deferred(job):
                    message = "The worker is shutting down; the job is kept and goes on when it starts again"
                    raise Draining(message, retry_after_seconds=30, request_id=job.public_id)
                changed.clear()
                await changed.wait()

    def has_ended(self, job: Job) -> bool:
        """Return True if the job's last state is on disk."""
        return job.state.is_terminal and job.id not in self._tasks

    def is_deferred(self, job: Job) -> bool:
        """Return True if the job makes no progress before the front's next start."""
        return self._is_draining and job.id not in self._tasks and not job.state.is_terminal

    def has_begun(self, job_id: str) -> bool:
        """Return True if an engine works on the job, or has, and the job has not ended."""
        job = self._store.jobs.get(job_id)
        return job is not None and job.stage in (Stage.RUNNING, Stage.DELIVERING)

    def hand_out_no_engine(self) -> None:
        """Let no waiting job begin any more, the first part of `drain`: the broker may be given them meanwhile."""
        self._pool.pause()

    async def drain(self, seconds: float) -> None:
        """Wait for running jobs to end, for at most `seconds` or until `end_drain`.

        The rest stays on disk for the next start: jobs that wait for inputs or an engine at once. An interruption here
        costs no attempt.
        """
        self._is_draining = True
        self.hand_out_no_engine()
        self._tasks.interrupt_all(lambda job_id: not self.has_begun(job_id))
        await self._tasks.wait(seconds, self._drain_ended)
        await self._tasks.stop()

    def end_drain(self) -> None:
        """End `drain` now."""
        self._drain_ended.set()

    @property
    def has_drain_ended(self) -> bool:
        return self._drain_ended.is_set()

    def counts(self) -> dict[str, int]:
        """Return the number of jobs in each state that is not terminal; `waiting` are those that wait for an engine."""
        counts = {state.value: 0 for state in JobState if not state.is_terminal} | {WAITING: 0}
        for job in self._store.jobs.values():
            if not job.state.is_terminal:
                counts[WAITING if job.stage.is_wait_for_engine else job.state.value] += 1
        return counts

    def check_integrity(self) -> list[str]:
        """Return one line for each inconsistency; empty is good."""
        fresh = int((time.time() - FRESH_SECONDS) * 1000)
        left = (
            job
            for job in self._store.jobs.values()
            if self._has_recovered and not self._is_draining and job.id not in self._tasks
        )
        wrong = [
            f"{job.id} has no task"
            for job in left
            if job.stage is not Stage.QUEUED or job.times.queued_at_ms < fresh  # else it is just being admitted
        ]
        return wrong + self._broken + self._store.check_integrity()

    # the way of one job

    async def _run_job(self, job: Job) -> None:
        self._tasks.begin(job.id)
        bind_contextvars(request_id=job.id)  # of this task, so of every record of it
        try:
            if self._tasks.is_cancelled(job.id):
                raise JobCancelled("The job was cancelled")
            if self._tasks.has_expired(job.id) or seconds_left(job, int(time.time() * 1000)) == 0:
                raise _expiry_of(job)
            if job.state in (JobState.PENDING, JobState.PROCESSING):
                self._changes.move(job, JobState.PROCESSING, "Preprocessing", Stage.FETCHING)
            if job.state is not JobState.GENERATED:
                await self._generate.generate(job)
            await self._deliver.deliver(job)
            ending = Ending(JobState.COMPLETED, f"Processing complete.{note_on(job.prompt)}")
        except asyncio.CancelledError:
            if self._tasks.is_cancelled(job.id):
                ending = _ending_of(job, JobCancelled("The job was cancelled"))
            elif self._tasks.has_expired(job.id):
                ending = _ending_of(job, _expiry_of(job))
            else:  # the front stops; the job stays on disk
                if job.stage is Stage.RUNNING:  # and its prompt has been taken back
                    job.note(None, job.waiting_stage)
                    self._changes.changed(job)
                raise
        except WorkerError as error:
            ending = _ending_of(job, error)
        except Exception:  # noqa: BLE001 - the job
            self._changes.log.hold(job)  # an error's text may repeat a part of the prompt
            log.exception("job failed unexpectedly", request_id=job.id)
            failure = JobFailure(500, "internal_error", "The worker failed; its log has the reason")
            ending = Ending(JobState.FAILED, f"{FAILED_WORDS[job.stage]} failed: internal error", failure)
        await self._end(job, ending)

    async def _end(self, job: Job, ending: Ending) -> None:
        self._tasks.unflag(job.id)
        self._deadlines.end(job.id)
        await self._ends.store(job, ending)
        self._tasks.remove(job.id)
        self._changes.log.ended(job)
        self._changes.spans.ended(job)
        self._hooks.on_end(job)
        self.feed.notify(job.id)

    def _leave(self, job: Job, task: asyncio.Task[None]) -> None:
        """Remove a task that has ended, and notify those that wait for its job."""
        self._tasks.remove(job.id)
        self._deadlines.end(job.id)
        if task.cancelled() and self._tasks.is_cancelled(job.id):  # by the drain, before it could see the mark
            self.start(job)
        elif not task.cancelled() and (error := task.exception()) is not None:
            log.error("job task failed", request_id=job.id, exc_info=error)
            self._broken = [*self._broken, f"the task of {job.id} ended: {type(error).__name__}"][-MAX_BROKEN:]
        self.feed.notify(job.id)


def _expiry_of(job: Job) -> JobExpired:
    allowed = job.request.expires_seconds
    return JobExpired(f"No engine began with the job within {allowed:g} s (`expires`)", expires=allowed)


def _ending_of(job: Job, error: WorkerError) -> Ending:
    """Return the end of a job that an error ends. Pure."""
    failure = JobFailure.of(error)
    match error:
        case JobCancelled():
            return Ending(JobState.CANCELLED, "Request cancelled", failure)
        case JobExpired():
            return Ending(JobState.TIMEOUT, error.message, failure)
        case JobTimedOut():
            return Ending(JobState.TIMEOUT, f"Generation failed: {error.message}", failure)
        case _:
            return Ending(JobState.FAILED, f"{FAILED_WORDS[job.stage]} failed: {error.message}", failure)
