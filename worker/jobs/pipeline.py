"""Pipeline: takes jobs through fetch, run, collect, deliver and report. `_run_job` is the whole way on one screen.

Every job is one task. Inputs of the next jobs are fetched, and outputs of the last ones delivered, while the engine
works. A job that has ended is stored, with its webhook, in one transaction.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import math
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Any

import structlog
from structlog.contextvars import bind_contextvars

from contract.wire import ARRIVING_KEY, PREVIEW_METHOD_KEY, QUALITY_KEY
from worker.concurrency.backoff import Backoff
from worker.engines.client.client import EngineClient
from worker.engines.client.lost import EngineLost, PromptRecalled
from worker.engines.loss import Loss, LossReason, error_of_loss
from worker.engines.low_memory_retry import tiled_prompt
from worker.engines.outcome import RunOutcome
from worker.engines.pool import EnginePool
from worker.engines.preview_frames import PreviewFrame
from worker.engines.socket_pictures import with_saved_pictures
from worker.errors import (
    DatabaseUnreachable,
    DiskLow,
    Draining,
    EngineAnswerInvalid,
    EngineUnreachable,
    JobCancelled,
    JobExpired,
    JobTimedOut,
    NothingMade,
    OutOfMemory,
    RequestRejected,
    StateUnusable,
    WorkerError,
)
from worker.jobs.asked_names import in_asked_names
from worker.jobs.checkpoints import JobCheckpoints
from worker.jobs.fair_turns import FairTurns
from worker.jobs.job_log import JobLog
from worker.jobs.job_models import JobModels
from worker.jobs.job_spans import JobSpans
from worker.jobs.preemption import Preemption, PromptPreempted
from worker.jobs.priority_semaphore import PrioritySemaphore
from worker.jobs.protocols import JobInputs, JobOutputs
from worker.jobs.queue_deadlines import QueueDeadlines, seconds_left
from worker.jobs.split_runs import RunPart, SplitRuns, num_engines_of
from worker.json.values import JsonObject, object_at
from worker.models.demo_model import note_on
from worker.outputs.delivered import OutputRecord
from worker.storage.database import FACT_DELETE, FACT_UPSERT
from worker.storage.group_commit import ChangeUnwritable
from worker.storage.job import Credentials, Job, JobFailure, JobState, Stage
from worker.storage.store import JobStore
from worker.storage.webhook_rows import WebhookRow, webhook_insert

log = structlog.get_logger("jobs")

LOST_PAUSE_SECONDS = 0.25
MAX_OUTSIDE_LOSSES = 10  # of engines during one job, by other causes than the job, before they cost attempts
MAX_LOSSES = 1000  # of an engine for which a job waited; how often one is started again has a limit of its own
COLLECT_BACKOFF = Backoff(first_seconds=0.1, longest_seconds=16.0, factor=4.0)
COLLECT_TRIES = 7  # within 40 seconds
STOP_SECONDS = 5.0
STORE_SECONDS = 2.0  # for which a reply waits for a state to be on disk
FRESH_SECONDS = 10.0
MAX_BROKEN = 10
QUEUED_WORDS = "Preprocessing complete. Queued for generation."
FAILED_WORDS = {
    Stage.QUEUED: "Preprocessing",
    Stage.FETCHING: "Preprocessing",
    Stage.WAITING: "Generation",
    Stage.LOW_MEMORY_RETRY: "Generation",
    Stage.RUNNING: "Generation",
    Stage.DELIVERING: "Post-processing",
}
STARTED_BY = frozenset({"execution_start", "executing", "progress"})
WAITING = "waiting"
"""State under which jobs that wait for an engine are counted."""


@dataclass(frozen=True, slots=True)
class PipelineLimits:
    """Limits of the pipeline. `num_running_of_caller` None: no limit."""

    job_timeout_seconds: float
    num_fetching: int
    num_running_of_caller: int | None = None

    @property
    def num_fetching_of_caller(self) -> int | None:
        """Half of the slots: where callers are limited at all, slow downloads of one leave room for others."""
        return None if self.num_running_of_caller is None else max(1, self.num_fetching // 2)


class JobFeed:
    """Notifications of changes by job: streams wait for every change, synchronous requests for the end."""

    def __init__(self) -> None:
        self._waiters: dict[str, set[asyncio.Event]] = {}

    @contextlib.contextmanager
    def watch(self, job_id: str) -> Any:
        """Yield an event that is set at every change of the job."""
        event = asyncio.Event()
        self._waiters.setdefault(job_id, set()).add(event)
        try:
            yield event
        finally:
            waiters = self._waiters.get(job_id, set())
            waiters.discard(event)
            if not waiters:
                self._waiters.pop(job_id, None)

    def notify(self, job_id: str) -> None:
        for event in self._waiters.get(job_id, ()):
            event.set()

    def num_watching(self, job_id: str) -> int:
        return len(self._waiters.get(job_id, ()))


class Pipeline:
    """Tasks of the jobs that have not ended, from the inputs' fetch to the outputs' delivery."""

    def __init__(
        self,
        store: JobStore,
        pool: EnginePool,
        inputs: JobInputs,
        outputs: JobOutputs,
        limits: PipelineLimits,
        *,
        make_webhooks: Callable[[Job, Credentials | None], Sequence[WebhookRow]],
        on_start: Callable[[Job], None],
        on_end: Callable[[Job], None],
        job_log: JobLog | None = None,
        spans: JobSpans | None = None,
        models: JobModels | None = None,
        checkpoints: JobCheckpoints | None = None,
        preempt_priority: int | None = None,
        on_accepted: Callable[[Job], None] = lambda job: None,
    ) -> None:
        self.feed = JobFeed()
        self._on_accepted = on_accepted
        self._store = store
        self._pool = pool
        self._inputs = inputs
        self._models = models
        self._checkpoints = checkpoints
        self._preemption = Preemption(preempt_priority)
        self._split_runs = SplitRuns(pool)
        self._outputs = outputs
        self._limits = limits
        self._make_webhooks = make_webhooks
        self._on_start = on_start
        self._on_end = on_end
        self._log = job_log or JobLog()
        self._spans = spans or JobSpans()
        self._fetching = PrioritySemaphore(limits.num_fetching)
        self._fetch_turns = FairTurns(limits.num_fetching_of_caller, store.turn_ms)
        self._run_turns = FairTurns(limits.num_running_of_caller, store.turn_ms)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._cancelled: set[str] = set()
        self._begun: set[str] = set()
        self._expired: set[str] = set()
        self._deadlines = QueueDeadlines(self._expire)
        self._unstored: dict[str, Job] = {}  # jobs before their ends, while these are not on disk
        self._broken: list[str] = []
        self._has_recovered = False
        self._is_draining = False
        self._drain_ended = asyncio.Event()

    def start(self, job: Job) -> None:
        """Start a stored job, or resume it after a restart.

        While draining it stays stored, unless it is to end as cancelled. A job that is just being admitted may have
        been begun, and ended, by a cancellation: it is never begun twice.
        """
        is_deferred = self._is_draining and job.id not in self._cancelled
        if is_deferred or job.state.is_terminal or job.id in self._tasks:
            return
        task = asyncio.create_task(self._run_job(job), name=f"job-{job.id}")
        self._tasks[job.id] = task
        task.add_done_callback(lambda _: self._leave(job, task))
        self._deadlines.begin(job)
        self._on_accepted(job)

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
        await self._end(job, JobState.FAILED, error.message, JobFailure.of(error))

    def cancel(self, job: Job) -> bool:
        """End a job as cancelled, in whatever state it is. Safe to call twice.

        Returns False when it has ended already.
        """
        if job.state.is_terminal:
            return False
        self._cancelled.add(job.id)
        task = self._tasks.get(job.id)
        if task is None:  # left by the last front, and no engine is up yet; or for the next one
            self.start(job)
        elif job.id in self._begun:  # one that has not begun sees the mark when it does
            task.cancel()
        return True

    def watch_deadlines(self) -> None:
        """Start the timers of stored jobs that may expire before an engine is up."""
        for job in self._store.jobs.values():
            self._deadlines.begin(job)

    def _expire(self, job: Job) -> None:
        """End a job that no engine has begun in time. While draining it expires at the next start."""
        self._expired.add(job.id)
        task = self._tasks.get(job.id)
        if task is None:
            self.start(job)
        elif job.id in self._begun:  # one that has not begun sees the mark when it does
            task.cancel()

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
        return self._unstored.get(job.id, job)

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
        for job_id in [job_id for job_id in self._tasks if not self.has_begun(job_id)]:
            self._tasks[job_id].cancel()
        ended = asyncio.ensure_future(self._drain_ended.wait())
        try:
            async with asyncio.timeout(seconds):
                while self._tasks and not ended.done():
                    await asyncio.wait({*self._tasks.values(), ended}, return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            log.warning("jobs deferred to next start", count=len(self._tasks))
        finally:
            ended.cancel()
        rest = list(self._tasks.values())
        for task in rest:
            task.cancel()
        if rest:  # one whose last state the disk refuses does not hold up the end
            await asyncio.wait(rest, timeout=STOP_SECONDS)

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
        self._begun.add(job.id)
        bind_contextvars(request_id=job.id)  # of this task, so of every record of it
        ending: tuple[JobState, str, JobFailure | None]
        try:
            if job.id in self._cancelled:
                raise JobCancelled("The job was cancelled")
            if job.id in self._expired or seconds_left(job, int(time.time() * 1000)) == 0:
                raise _expiry_of(job)
            if job.state in (JobState.PENDING, JobState.PROCESSING):
                self._move(job, JobState.PROCESSING, "Preprocessing", Stage.FETCHING)
            if job.state is not JobState.GENERATED:
                await self._generate(job)
            await self._deliver(job)
            ending = (JobState.COMPLETED, f"Processing complete.{note_on(job.prompt)}", None)
        except asyncio.CancelledError:
            if job.id not in self._cancelled | self._expired:  # the front stops; the job stays on disk
                if job.stage is Stage.RUNNING:  # and its prompt has been taken back
                    job.note(None, job.waiting_stage)
                    self._changed(job)
                raise
            if job.id in self._cancelled:
                cancellation = JobCancelled("The job was cancelled")
                ending = (JobState.CANCELLED, "Request cancelled", JobFailure.of(cancellation))
            else:
                late = _expiry_of(job)
                ending = (JobState.TIMEOUT, late.message, JobFailure.of(late))
        except JobCancelled as cancelled:
            ending = (JobState.CANCELLED, "Request cancelled", JobFailure.of(cancelled))
        except JobExpired as expired:
            ending = (JobState.TIMEOUT, expired.message, JobFailure.of(expired))
        except JobTimedOut as timed_out:
            ending = (JobState.TIMEOUT, f"Generation failed: {timed_out.message}", JobFailure.of(timed_out))
        except WorkerError as failed:
            ending = (JobState.FAILED, f"{FAILED_WORDS[job.stage]} failed: {failed.message}", JobFailure.of(failed))
        except Exception:  # noqa: BLE001 - the job
            self._log.hold(job)  # an error's text may repeat a part of the prompt
            log.exception("job failed unexpectedly", request_id=job.id)
            failure = JobFailure(500, "internal_error", "The worker failed; its log has the reason")
            ending = (JobState.FAILED, f"{FAILED_WORDS[job.stage]} failed: internal error", failure)
        await self._end(job, *ending)

    async def _generate(self, job: Job) -> None:
        """Fetch, run and collect, a second time when the engine was lost during the run or memory was short."""
        may_be_there, num_losses = job.is_recovered, 0
        if job.is_recovered:
            with contextlib.suppress(DatabaseUnreachable):
                job.num_outside_losses = int(str(await self._store.facts.get(_losses_name(job)) or 0))
        prompt: JsonObject | None = None
        while True:
            try:
                prompt = prompt or await self._fetch(job)
                self._queue_for_engine(job)
                queued_at = time.monotonic()
                try:
                    outcome, engine = await self._run_on_engine(job, prompt, may_be_there)
                except RequestRejected as rejected:
                    raise in_asked_names(rejected, job.prompt, prompt) from None
                finally:
                    _record_run(job, queued_at, time.monotonic())
                if not isinstance(outcome.error, OutOfMemory) or not await self._retry_with_less_memory(job, engine):
                    break
                may_be_there, prompt = False, None
            except PromptRecalled:
                job.is_at_engine = may_be_there = False
                job.note(QUEUED_WORDS, job.waiting_stage)
                self._changed(job)
            except PromptPreempted:
                job.is_at_engine = may_be_there = False
                job.num_preempted += 1
                job.progress.begin_again()
                job.note(QUEUED_WORDS, job.waiting_stage)
                self._changed(job)
            except EngineLost as lost:
                job.is_at_engine, prompt = False, None
                # Perhaps only the reply was lost; but a result of a failed device is not used.
                may_be_there = lost.loss.reason is not LossReason.DEVICE_LOST
                if (num_losses := num_losses + 1) > MAX_LOSSES:
                    raise EngineUnreachable("The engine was lost repeatedly before the job began") from None
                if lost.is_culprit and lost.loss.reason.is_hang:
                    raise self._error_of_loss(job, lost.loss) from None
                job.runs_alone |= lost.is_suspect
                if lost.was_running and lost.loss.is_outside and self._goes_on(job, lost.loss):
                    pass
                elif lost.was_running:
                    job.last_loss = lost.loss
                    self._move(job, JobState.GENERATING, QUEUED_WORDS, Stage.RUNNING)
                elif (
                    lost.is_bystander or job.stage is not Stage.RUNNING
                ):  # else it was lost while it ran, and now once more before it could
                    job.note(QUEUED_WORDS, job.waiting_stage)
                self._changed(job)
                await asyncio.sleep(LOST_PAUSE_SECONDS)  # until the pool has registered the loss
        if outcome.warnings:  # once each, also where a job ran twice
            known = [warning for warning in outcome.warnings if warning not in job.request.warnings]
            job.request = replace(job.request, warnings=(*job.request.warnings, *known))
        if outcome.error is not None:
            if isinstance(outcome.error, OutOfMemory):
                outcome.error.fields["attempts"] = job.attempt
            raise outcome.error
        if outcome.was_interrupted:
            raise JobCancelled("Another client of the engine interrupted this job")
        records = await self._collect(job, outcome, engine)
        if not records:
            raise NothingMade("The workflow ran and saved nothing")
        job.outputs = tuple(records)
        job.engine_response = outcome.entry if job.request.wants_engine_response else {}
        job.tuning = outcome.tuning
        job.progress.finish()
        self._move(job, JobState.GENERATED, "Generation complete. Queued for post-processing.", Stage.DELIVERING)
        if self._outputs.sends_away(job):
            with contextlib.suppress(StateUnusable):  # then the job's end waits for the disk
                await asyncio.shield(self._store.save(job))  # so that it is never drawn again

    async def _collect(self, job: Job, outcome: RunOutcome, engine: EngineClient) -> Sequence[OutputRecord]:
        """Collect the files of a run.

        An engine that is unreachable for a while is waited for: the pictures are not drawn again.
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

    async def _fetch(self, job: Job) -> JsonObject:
        """Fetch the inputs and return the prompt for the engine.

        Waits for an engine that is starting. Only downloads take a slot.
        """
        began = time.monotonic()
        engine = await self._pool.any_up()
        job.times.add("wait", _since(began))
        began = time.monotonic()
        try:
            return await self._fetched(job, engine)
        finally:
            job.times.add("preprocess", _since(began))

    async def _fetched(self, job: Job, engine: EngineClient) -> JsonObject:
        object_info = await _object_info(engine)
        reads_early = engine.has_check and engine.folders is not None
        if self._models is not None and await self._models.fetch(
            job, object_info, lambda words: self._say(job, words), reads_early=reads_early
        ):
            self._say(job, "Preprocessing")
            object_info = await _object_info(engine)
        if not self._inputs.plan(job.prompt, object_info).pending_files:
            return job.prompt
        async with self._fetch_turns.turn(job), self._fetching.acquire(job.order):
            return await self._inputs.fetch(job, engine)

    def _queue_for_engine(self, job: Job) -> None:
        if job.stage is Stage.FETCHING:
            self._move(job, job.state, QUEUED_WORDS, Stage.WAITING)

    async def _run_on_engine(self, job: Job, prompt: JsonObject, may_be_there: bool) -> tuple[RunOutcome, EngineClient]:
        holder = await self._engine_with(job.prompt_id) if may_be_there else None
        if holder is None and job.stage is Stage.RUNNING:
            went_with_the_front = job.is_recovered and self._pool.restarts_engines
            if not (went_with_the_front and self._goes_on(job, Loss(LossReason.GONE, is_outside=True))):
                self._retry(job)
        turn = self._run_turns.turn(job, is_inside=holder is not None)
        async with (
            turn,  # which may change the order
            self._way_made(job) as has_slot,
            self._pool.engine(job.order, only=holder, is_alone=job.runs_alone) as engine,
        ):
            has_slot()
            job.is_recovered, job.is_at_engine = False, True
            self._log.hold(job)
            try:
                prompt = with_saved_pictures(await self._inputs.place(prompt, engine))
                if job.needs_less_memory:
                    prompt = tiled_prompt(prompt, await engine.object_info())
            except EngineAnswerInvalid:
                raise
            except EngineUnreachable as error:
                raise EngineLost(error.message) from None
            job.began_at = began = time.monotonic()
            extra = {**job.request.extra, **self._inputs.scope(prompt, engine), **_drawing_of(job, engine)}
            downloads = None if self._models is None else self._models.downloads_of(job.id)
            if downloads is not None:
                extra[ARRIVING_KEY] = list(downloads.places)
            shows_previews = job.request.wants_previews
            async with self._checkpoint(job, engine) as checkpoint:

                def run_part(part: RunPart) -> Awaitable[RunOutcome]:
                    return part.engine.runner.run(
                        part.prompt,
                        part.prompt_id,
                        part.reports(partial(self._on_message, job)),
                        timeout_seconds=self._seconds_left(job, since=began if part.is_again else None),
                        extra_data={**extra, **(checkpoint if part.is_first else {})},
                        is_there=holder is not None,
                        traceparent=self._spans.traceparent_of(job),
                        on_preview=partial(self._on_preview, job) if shows_previews and part.is_first else None,
                        targets=part.targets,
                    )

                run = self._split_runs.run(job, prompt, engine, run_part, is_there=holder is not None)
                self._preemption.make_way_at(engine, job)
                run = run if downloads is None else downloads.beside(run)
                outcome = await self._preemption.run(job, engine, run)
            self._started(job, began)  # unless a message has reported it
            job.is_at_engine = False
            job.run_seconds = (time.monotonic() - max(began, job.began_at)) * num_engines_of(outcome)
            return outcome, engine

    def _seconds_left(self, job: Job, *, since: float | None) -> float:
        """Return the time that a run may take; `since` is when the job's first part began, None for that one."""
        allowed = min(self._limits.job_timeout_seconds, job.request.timeout_seconds or math.inf)
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

    async def _engine_with(self, prompt_id: str) -> EngineClient | None:
        """Return the engine that has a prompt which may have been sent before.

        Raises EngineLost when an engine does not reply.
        """
        for engine in self._pool.clients_up:
            try:
                if await engine.prompts.has_prompt(prompt_id):
                    return engine
            except EngineUnreachable as error:
                raise EngineLost(error.message) from None
        return None

    async def _retry_with_less_memory(self, job: Job, engine: EngineClient) -> bool:
        """Prepare the next attempt of a job that ran out of memory. Return False when none is left."""
        job.needs_less_memory = True
        if not job.begin_retry(QUEUED_WORDS):
            return False
        log.warning("job retried with less memory", request_id=job.id)
        self._changed(job)
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
        counted = {"name": _losses_name(job), "value": str(job.num_outside_losses)}
        self._store.save(job, (FACT_UPSERT, counted))
        self.feed.notify(job.id)
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
        self._changed(job)

    def _error_of_loss(self, job: Job, loss: Loss) -> WorkerError:
        where = job.progress.node_id
        class_type = object_at(job.prompt, where or "").get("class_type")
        return error_of_loss(loss, job.attempt, where, None if class_type is None else str(class_type))

    async def _deliver(self, job: Job) -> None:
        began = time.monotonic()
        job.outputs = tuple(await self._outputs.deliver(job, self._store.job_directory(job.id)))
        job.times.add("postprocess", _since(began))

    async def _end(self, job: Job, state: JobState, message: str, failure: JobFailure | None) -> None:
        kept = job.credentials
        self._log.hold(job)
        before = self._unstored[job.id] = copy.copy(job)
        before.credentials = None
        job.end(state, message, int(time.time() * 1000), failure)
        self._inputs.release(job.id)
        if self._models is not None:
            self._models.release(job.id)
        self._cancelled.discard(job.id)
        self._begun.discard(job.id)
        self._expired.discard(job.id)
        self._deadlines.end(job.id)
        if not await self._store_end(job, kept):
            job.fail_unstored(
                JobFailure(500, "internal_error", "The end of the job cannot be stored; the log has the reason")
            )
            await self._store_end(job, kept)
        del self._unstored[job.id]
        if not job.outputs:
            await asyncio.to_thread(shutil.rmtree, self._store.job_directory(job.id), True)
        if self._checkpoints is not None and not job.is_handed_back:
            await self._checkpoints.remove(job)
        self._tasks.pop(job.id, None)
        self._log.ended(job)
        self._spans.ended(job)
        self._on_end(job)
        self.feed.notify(job.id)

    async def _store_end(self, job: Job, kept: Credentials | None) -> bool:
        """Wait until the job's end is on disk, its webhook with it.

        Returns False when it cannot be stored at all.
        """
        writes = [*map(webhook_insert, self._make_webhooks(job, kept))]
        if job.num_outside_losses or job.is_recovered:  # an earlier front may have counted some
            writes.append((FACT_DELETE, {"gone_name": _losses_name(job)}))
        committed = self._store.save(job, *writes)
        # Nothing may come between the last state and its commit, not even a second cancel.
        while not committed.done():
            with contextlib.suppress(asyncio.CancelledError, StateUnusable):
                await asyncio.shield(committed)
        return not isinstance(committed.exception(), ChangeUnwritable)

    def _leave(self, job: Job, task: asyncio.Task[None]) -> None:
        """Remove a task that has ended, and notify those that wait for its job."""
        self._tasks.pop(job.id, None)
        self._deadlines.end(job.id)
        if task.cancelled() and job.id in self._cancelled:  # by the drain, before it could see the mark
            self.start(job)
        elif not task.cancelled() and (error := task.exception()) is not None:
            log.error("job task failed", request_id=job.id, exc_info=error)
            self._broken = [*self._broken, f"the task of {job.id} ended: {type(error).__name__}"][-MAX_BROKEN:]
        self.feed.notify(job.id)

    # small changes

    def _on_message(self, job: Job, kind: str, data: Mapping[str, Any]) -> None:
        progress = job.progress
        progress.begin(job.prompt)
        self._spans.on_message(job, kind, data)
        if kind in STARTED_BY and job.stage is not Stage.RUNNING and not self._is_fetching(job):
            self._started(job, time.monotonic())
        if kind == "execution_cached":
            progress.skip(data.get("nodes") or ())
            self.feed.notify(job.id)
        elif kind == "executing" and data.get("node") is not None:
            progress.enter(str(data["node"]))
            self.feed.notify(job.id)
        elif kind == "progress" and data.get("max"):
            progress.step(str(data.get("node")), data.get("value", 0), data["max"])
            job.message = f"Progress: {progress.percent:.1f}% ({progress.value:g}/{progress.maximum:g})"
            self.feed.notify(job.id)

    def _is_fetching(self, job: Job) -> bool:
        """Return True while an engine waits for files of the job: it has not begun, and losing it costs no attempt."""
        return self._models is not None and self._models.is_fetching(job.id)

    def _say(self, job: Job, message: str) -> None:
        """Set the message of a job between two states; it is not stored, as progress is not."""
        job.message = message
        self.feed.notify(job.id)

    def _on_preview(self, job: Job, frame: PreviewFrame) -> None:
        job.preview = frame
        self.feed.notify(job.id)

    def _started(self, job: Job, at: float) -> None:
        """Record that an engine has begun with a job at a time of the monotonic clock. No effect if it is known."""
        if job.stage is not Stage.RUNNING:
            job.began_at = at
            self._move(job, JobState.GENERATING, f"Generation started (ComfyUI job: {job.prompt_id})", Stage.RUNNING)
            self._log.started(job)
            self._on_start(job)

    def _move(self, job: Job, state: JobState, message: str, stage: Stage) -> None:
        if job.state is not state:
            job.move_to(state, message, stage)
        else:
            job.note(message, stage)
        self._changed(job)

    def _changed(self, job: Job) -> None:
        self._spans.changed(job)
        self._store.save_soon(job)
        self.feed.notify(job.id)


def _losses_name(job: Job) -> str:
    """Return the name of the stored number of a job's losses by causes outside of it."""
    return f"outside_losses {job.id}"


async def _object_info(engine: EngineClient) -> JsonObject:
    """Return the engine's node classes while a job holds a slot there. Raises EngineLost."""
    try:
        return await engine.object_info()
    except EngineAnswerInvalid:
        raise
    except EngineUnreachable as error:
        raise EngineLost(error.message) from None


def _record_run(job: Job, queued_at: float, ended_at: float) -> None:
    """Divide the time of one attempt, from its place in the queue to its end, into wait and generation."""
    has_begun = job.stage is Stage.RUNNING and job.began_at >= queued_at
    began_at = job.began_at if has_begun else ended_at
    job.times.add("wait", round((began_at - queued_at) * 1000))
    if has_begun:
        job.times.add("generation", round((ended_at - began_at) * 1000))


def _expiry_of(job: Job) -> JobExpired:
    allowed = job.request.expires_seconds
    return JobExpired(f"No engine began with the job within {allowed:g} s (`expires`)", expires=allowed)


def _since(began: float) -> int:
    return round((time.monotonic() - began) * 1000)


def _drawing_of(job: Job, engine: EngineClient) -> dict[str, str]:
    """Return the requested quality and previews; a foreign engine has no qualities."""
    previews = {PREVIEW_METHOD_KEY: "auto"} if job.request.wants_previews else {}
    return {QUALITY_KEY: job.request.quality, **previews} if engine.has_check else previews
