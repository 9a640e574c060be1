"""Pipeline: takes jobs through fetch, run, collect, deliver and report. `_run_job` is the whole way on one screen.

Every job is one task. Inputs of the next jobs are fetched, and outputs of the last ones delivered, while the engine
works. A job that has ended is stored, with its webhook, in one transaction.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import structlog

from worker.engine.client import EngineClient, EngineLost
from worker.engine.outcome import RunOutcome
from worker.engine.pool import EnginePool
from worker.errors import EngineUnreachable, JobCancelled, JobTimedOut, NothingMade, StateUnusable, WorkerError
from worker.jobs.job import Credentials, Job, JobFailure, JobState, Stage
from worker.jobs.places import Places
from worker.jobs.stages import InputStage, OutputStage
from worker.jobs.store import JobStore, WebhookRow, webhook_insert

log = structlog.get_logger("jobs")

LOST_PAUSE_SECONDS = 0.25
MAX_LOSSES_WHILE_WAITING = 50
STOP_SECONDS = 5.0
QUEUED_WORDS = "Preprocessing complete. Queued for generation."
FAILED_WORDS = {
    JobState.PENDING: "Preprocessing",
    JobState.PROCESSING: "Preprocessing",
    JobState.GENERATING: "Generation",
    JobState.GENERATED: "Post-processing",
}


@dataclass(frozen=True, slots=True)
class PipelineLimits:
    job_timeout_seconds: float
    num_fetching: int
    num_delivering: int


class JobFeed:
    """Who waits for what happens to a job: streams for every change, synchronous requests for the end."""

    def __init__(self) -> None:
        self._waiters: dict[str, set[asyncio.Event]] = {}

    @contextlib.contextmanager
    def watch(self, job_id: str) -> Any:
        """An event that is set at every change of the job."""
        event = asyncio.Event()
        self._waiters.setdefault(job_id, set()).add(event)
        try:
            yield event
        finally:
            waiters = self._waiters.get(job_id, set())
            waiters.discard(event)
            if not waiters:
                self._waiters.pop(job_id, None)

    def tell(self, job_id: str) -> None:
        for event in self._waiters.get(job_id, ()):
            event.set()

    def num_watching(self, job_id: str) -> int:
        return len(self._waiters.get(job_id, ()))


class Pipeline:
    """Owns the tasks of the jobs that have not ended."""

    def __init__(
        self,
        store: JobStore,
        pool: EnginePool,
        inputs: InputStage,
        outputs: OutputStage,
        limits: PipelineLimits,
        *,
        make_webhook: Callable[[Job, Credentials | None], WebhookRow | None],
        on_start: Callable[[Job], None],
        on_end: Callable[[Job], None],
    ) -> None:
        self.feed = JobFeed()
        self._store = store
        self._pool = pool
        self._inputs = inputs
        self._outputs = outputs
        self._limits = limits
        self._make_webhook = make_webhook
        self._on_start = on_start
        self._on_end = on_end
        self._fetching = Places(limits.num_fetching)
        self._delivering = Places(limits.num_delivering)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._cancelled: set[str] = set()
        self._begun: set[str] = set()

    def start(self, job: Job) -> None:
        """Begins, or after a restart goes on with, a job that is on disk."""
        task = asyncio.create_task(self._run_job(job), name=f"job-{job.id}")
        self._tasks[job.id] = task
        task.add_done_callback(lambda _: self._leave(job))

    def recover(self) -> int:
        """Starts every job that the last front left unfinished; gives how many. The running one is run once more."""
        jobs = sorted(
            (job for job in self._store.jobs.values() if job.id not in self._tasks), key=lambda job: job.order
        )
        for job in jobs:
            self.start(job)
        return len(jobs)

    def cancel(self, job: Job) -> bool:
        """Ends a job as cancelled, in whatever state it is. False when it has ended already. Safe to call twice."""
        if job.state.is_terminal:
            return False
        self._cancelled.add(job.id)
        task = self._tasks.get(job.id)
        if task is None:  # left by the last front, and no engine is up yet
            self.start(job)
        elif job.id in self._begun:  # one that has not begun sees the mark when it does
            task.cancel()
        return True

    async def wait_for_end(self, job: Job) -> None:
        with self.feed.watch(job.id) as changed:
            while not self.has_ended(job):
                changed.clear()
                await changed.wait()

    def has_ended(self, job: Job) -> bool:
        """Whether the job's last state is on disk."""
        return job.state.is_terminal and job.id not in self._tasks

    async def drain(self, seconds: float) -> None:
        """Waits until running jobs have ended, at most `seconds`; the rest stays on disk for the next start."""
        tasks = [task for job_id, task in self._tasks.items() if self._has_begun(job_id)]
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)
        rest = list(self._tasks.values())
        for task in rest:
            task.cancel()
        if rest:  # one whose last state the disk refuses does not hold up the end
            await asyncio.wait(rest, timeout=STOP_SECONDS)

    def counts(self) -> dict[JobState, int]:
        counts = dict.fromkeys(JobState, 0)
        for job in self._store.jobs.values():
            counts[job.state] += 1
        return counts

    def check_integrity(self) -> list[str]:
        wrong = [f"{job_id} has no task" for job_id in self._store.jobs if job_id not in self._tasks]
        return wrong + self._store.check_integrity()

    # the way of one job

    async def _run_job(self, job: Job) -> None:
        self._begun.add(job.id)
        ending: tuple[JobState, str, JobFailure | None]
        try:
            if job.id in self._cancelled:
                raise JobCancelled("The job was cancelled")
            if job.state in (JobState.PENDING, JobState.PROCESSING):
                self._move(job, JobState.PROCESSING, "Preprocessing", Stage.FETCHING)
            if job.state is not JobState.GENERATED:
                await self._generate(job)
            await self._deliver(job)
            ending = (JobState.COMPLETED, "Processing complete.", None)
        except asyncio.CancelledError:
            if job.id not in self._cancelled:
                raise  # the front stops; the job stays on disk
            ending = (JobState.CANCELLED, "Request cancelled", JobFailure.of(JobCancelled("The job was cancelled")))
        except JobCancelled as cancelled:
            ending = (JobState.CANCELLED, "Request cancelled", JobFailure.of(cancelled))
        except JobTimedOut as timed_out:
            ending = (JobState.TIMEOUT, f"Generation failed: {timed_out.message}", JobFailure.of(timed_out))
        except WorkerError as failed:
            ending = (JobState.FAILED, f"{FAILED_WORDS[job.state]} failed: {failed.message}", JobFailure.of(failed))
        except Exception:  # noqa: BLE001 - the job
            log.exception("job failed for a reason of ours", job_id=job.id)
            failure = JobFailure(500, "internal_error", "The worker failed; its log tells why")
            ending = (JobState.FAILED, f"{FAILED_WORDS[job.state]} failed: internal error", failure)
        await self._end(job, *ending)

    async def _generate(self, job: Job) -> None:
        """Fetches, runs and collects; a second time when the engine was lost during the run."""
        may_be_there, num_waits = job.is_recovered, 0
        while True:
            try:
                began = time.monotonic()
                prompt = await self._fetch(job)
                if job.times.preprocess_ms is None:
                    job.times.preprocess_ms = _since(began)
                self._queue_for_engine(job)
                began = time.monotonic()
                outcome, engine = await self._run_on_engine(job, prompt, may_be_there)
                job.times.generation_ms = _since(began)
                break
            except EngineLost as lost:
                job.is_at_engine = False
                may_be_there = True  # only its answer may have been lost
                if lost.was_running:
                    self._retry(job)
                elif (num_waits := num_waits + 1) > MAX_LOSSES_WHILE_WAITING:
                    raise EngineUnreachable("The engine was lost again and again before the job began") from None
                else:
                    job.note(QUEUED_WORDS, Stage.WAITING)
                    self._changed(job)
                    await asyncio.sleep(LOST_PAUSE_SECONDS)  # until the pool knows it too
        if outcome.error is not None:
            raise outcome.error
        if outcome.was_interrupted:
            raise JobCancelled("The engine was told by somebody else to stop this job")
        records = await self._outputs.collect(job, outcome, self._store.job_directory(job.id), engine)
        if not records:
            raise NothingMade("The workflow ran and saved nothing")
        job.outputs = tuple(records)
        job.engine_response = outcome.entry if job.request.wants_engine_response else {}
        job.progress.finish()
        self._move(job, JobState.GENERATED, "Generation complete. Queued for post-processing.", Stage.DELIVERING)
        with contextlib.suppress(StateUnusable):  # then the job's end is what waits for the disk
            await asyncio.shield(self._store.save(job))  # so that it is never drawn again

    async def _fetch(self, job: Job) -> Mapping[str, Any]:
        """The prompt as the engine gets it. Waits for an engine that is starting, and only a download takes a place."""
        engine = await self._pool.any_up()
        try:
            object_info = await engine.object_info()
        except EngineUnreachable as error:
            raise EngineLost(error.message, was_running=False) from None
        if not self._inputs.plan(job.prompt, object_info).pending_files:
            return job.prompt
        async with self._fetching.place(job.order):
            return await self._inputs.fetch(job, engine)

    def _queue_for_engine(self, job: Job) -> None:
        if job.state is JobState.PROCESSING:
            self._move(job, JobState.GENERATING, QUEUED_WORDS, Stage.WAITING)

    async def _run_on_engine(
        self, job: Job, prompt: Mapping[str, Any], may_be_there: bool
    ) -> tuple[RunOutcome, EngineClient]:
        async with self._pool.engine(job.order) as engine:
            job.is_at_engine = True
            is_there = may_be_there and await _has_prompt(engine, job.prompt_id)
            if job.is_recovered and job.stage is Stage.RUNNING and not is_there:
                self._retry(job)
            job.is_recovered = False
            job.began_at = began = time.monotonic()
            outcome = await engine.run(
                prompt,
                job.prompt_id,
                lambda kind, data: self._hear(job, kind, data),
                timeout_seconds=self._limits.job_timeout_seconds,
                extra_data=job.request.extra,
                is_there=is_there,
            )
            job.is_at_engine = False
            job.run_seconds = time.monotonic() - max(began, job.began_at)
            return outcome, engine

    def _retry(self, job: Job) -> None:
        """Takes the next attempt. Raises EngineUnreachable when there is none."""
        if not job.begin_retry(QUEUED_WORDS):
            raise EngineUnreachable("The engine was lost twice during this job", attempts=job.attempt)
        self._changed(job)

    async def _deliver(self, job: Job) -> None:
        began = time.monotonic()
        async with self._delivering.place(job.order):
            job.outputs = tuple(await self._outputs.deliver(job, self._store.job_directory(job.id)))
        job.times.postprocess_ms = _since(began)

    async def _end(self, job: Job, state: JobState, message: str, failure: JobFailure | None) -> None:
        kept = job.credentials
        job.end(state, message, int(time.time() * 1000), failure)
        self._inputs.release(job.id)
        self._cancelled.discard(job.id)
        self._begun.discard(job.id)
        webhook = self._make_webhook(job, kept)
        committed = self._store.save(job, *([] if webhook is None else [webhook_insert(webhook)]))
        # Nothing may come between the last state and its commit, not even a second cancel.
        while not committed.done():
            with contextlib.suppress(asyncio.CancelledError, StateUnusable):
                await asyncio.shield(committed)
        if not job.outputs:
            await asyncio.to_thread(shutil.rmtree, self._store.job_directory(job.id), True)
        self._tasks.pop(job.id, None)
        log.info("job ended", job_id=job.id, state=state.value, **(failure.as_json() if failure else {}))
        self._on_end(job)
        self.feed.tell(job.id)

    def _leave(self, job: Job) -> None:
        """The task is over, however it ended; whoever waits for the job looks again."""
        self._tasks.pop(job.id, None)
        self.feed.tell(job.id)

    # small changes

    def _hear(self, job: Job, kind: str, data: Mapping[str, Any]) -> None:
        progress = job.progress
        progress.begin(job.prompt)
        if kind == "execution_start" and job.stage is not Stage.RUNNING:
            job.began_at = time.monotonic()
            job.note(f"Generation started (ComfyUI job: {job.prompt_id})", Stage.RUNNING)
            self._changed(job)
            self._on_start(job)
        elif kind == "execution_cached":
            progress.skip(data.get("nodes") or ())
            self.feed.tell(job.id)
        elif kind == "executing" and data.get("node") is not None:
            progress.enter(str(data["node"]))
            self.feed.tell(job.id)
        elif kind == "progress" and data.get("max"):
            progress.step(str(data.get("node")), data.get("value", 0), data["max"])
            job.message = f"Progress: {progress.percent:.1f}% ({progress.value:g}/{progress.maximum:g})"
            self.feed.tell(job.id)

    def _move(self, job: Job, state: JobState, message: str, stage: Stage) -> None:
        if job.state is not state:
            job.move_to(state, message, stage)
        else:
            job.note(message, stage)
        self._changed(job)

    def _changed(self, job: Job) -> None:
        self._store.save_soon(job)
        self.feed.tell(job.id)

    def _has_begun(self, job_id: str) -> bool:
        job = self._store.jobs.get(job_id)
        return job is not None and job.stage in (Stage.RUNNING, Stage.DELIVERING)


async def _has_prompt(engine: EngineClient, prompt_id: str) -> bool:
    """Whether a prompt that may have been sent before is there. Raises EngineLost."""
    try:
        return await engine.knows(prompt_id)
    except EngineUnreachable as error:
        raise EngineLost(error.message, was_running=False) from None


def _since(began: float) -> int:
    return round((time.monotonic() - began) * 1000)
