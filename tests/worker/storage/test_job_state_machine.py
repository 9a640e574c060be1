"""Jobs through submissions, duplicates, cancels, retries, crashes and restarts, in any order that hypothesis thinks of.

Real admission, a real SQLite file; a crash drops whatever has not been committed. What holds at every moment: an id
that was acknowledged is never unknown and ends exactly once, with its webhook in the same transaction; what a client
was shown never goes back, neither the status nor the sequence number.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from darkroom.worker.errors import QueueFull, RequestIdConflict
from darkroom.worker.jobs.admission import Admission, Gate
from darkroom.worker.jobs.queue_info import QueueInfo
from darkroom.worker.jobs.wait_estimate import RunClock
from darkroom.worker.settings.jobs import QueueLimits
from darkroom.worker.storage.job import Credentials, Job, JobRequest, JobState, JobTimes, Stage
from darkroom.worker.storage.store import JobStore
from darkroom.worker.storage.webhook_rows import WebhookRow, webhook_insert
from tests.worker.databases import give_database

MAX_QUEUED = 4
MEMORY = Path("/dev/shm")
LIMITS = QueueLimits(max_queued=MAX_QUEUED, min_free_disk_bytes=0, min_free_memory_bytes=0, job_timeout_seconds=60.0)
ON_THE_WAY = [JobState.PENDING, JobState.PROCESSING, JobState.GENERATING, JobState.GENERATED]
Result = TypeVar("Result")


@dataclass
class Known:
    """Knowledge of the client of one id."""

    body: str
    priority: int
    state: JobState = JobState.PENDING
    seq: int = -1


class JobsOfAWorker(RuleBasedStateMachine):
    template: Path  # a migrated, empty database: a migration for each example would take most of the time
    ids = Bundle("ids")

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.folder = Path(tempfile.mkdtemp(dir=MEMORY if MEMORY.is_dir() else None))  # a disk is no part of this
        shutil.copytree(self.template, self.folder, dirs_exist_ok=True)
        self.known: dict[str, Known] = {}
        self.next_id = 0

    @initialize()
    def start(self) -> None:
        self.await_(self.open())

    # requests

    @rule(target=ids, body=st.sampled_from("ab"), priority=st.integers(-10, 10), num_at_once=st.integers(1, 3))
    def submit(self, body: str, priority: int, num_at_once: int) -> Any:
        """One request, or the same one several times at once."""
        job_id = f"job-{self.next_id}"
        self.next_id += 1
        is_full = len(self.store.jobs) >= MAX_QUEUED
        admitting = (self.admit(job_id, body, priority) for _ in range(num_at_once))
        admitted = self.await_(gather(*admitting))
        if is_full:
            assert all(isinstance(outcome, QueueFull) for outcome in admitted)
            return multiple()
        assert [outcome.is_new for outcome in admitted].count(True) == 1
        self.known[job_id] = Known(body, priority)
        return job_id

    @rule(job_id=ids, body=st.sampled_from("ab"))
    def submit_again(self, job_id: str, body: str) -> None:
        (outcome,) = self.await_(gather(self.admit(job_id, body, 0)))
        if body == self.known[job_id].body:
            assert not outcome.is_new
            self.show(outcome.job)
        else:
            assert isinstance(outcome, RequestIdConflict)

    @rule(job_id=ids)
    def ask(self, job_id: str) -> None:
        job = self.await_(self.store.find(job_id))
        assert job is not None
        self.show(job)

    # what the pipeline does

    @rule(job_id=ids, is_shown=st.booleans())
    def advance(self, job_id: str, is_shown: bool) -> None:
        """The next thing on the way, saved when it suits the store, unless somebody is shown it at once."""
        job = self.store.jobs.get(job_id)
        if job is None or job.state is JobState.GENERATED:
            return
        if job.state is JobState.GENERATING and job.stage is Stage.WAITING:
            job.note("Generation started", Stage.RUNNING)
        else:
            following = ON_THE_WAY[ON_THE_WAY.index(job.state) + 1]
            stages = {JobState.PROCESSING: Stage.FETCHING, JobState.GENERATING: Stage.WAITING}
            job.move_to(following, following.value, stages.get(following, Stage.DELIVERING))
        self.await_(self.save_soon(job))
        if is_shown:
            self.show(job)

    @rule(job_id=ids)
    def run_again(self, job_id: str) -> None:
        """The engine was lost."""
        job = self.store.jobs.get(job_id)
        if job is None or job.state is not JobState.GENERATING:
            return
        before = (job.state, job.seq, job.attempt)
        if job.begin_retry("Queued again"):
            assert (job.state, job.seq, job.attempt) == (before[0], before[1] + 1, 2)
            self.await_(self.save_soon(job))
        else:
            assert before[2] == 2

    @rule(
        job_id=ids,
        state=st.sampled_from([JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED, JobState.TIMEOUT]),
        is_awaited=st.booleans(),
    )
    def end(self, job_id: str, state: JobState, is_awaited: bool) -> None:
        """A job ends, from whatever state; a crash may come before that is on disk."""
        job = self.store.jobs.get(job_id)
        if job is None or (state is JobState.COMPLETED and job.state is not JobState.GENERATED):
            return
        job.end(state, state.value, at_ms=1)
        committed = self.await_(self.save_end(job))
        if is_awaited:
            self.await_(committed)

    @rule()
    def let_time_pass(self) -> None:
        self.await_(asyncio.sleep(0.06))

    # the process

    @rule()
    def crash(self) -> None:
        """Crash: commits that had not ended are lost, or one of them stays whole."""
        self.await_(self.die())
        self.await_(self.open())
        for job_id in self.known:
            self.ask(job_id)

    @rule()
    def restart(self) -> None:
        self.await_(self.store.close())
        self.await_(self.open())
        assert [job.id for job in self.store.jobs.values() if job.is_recovered] == list(self.store.jobs)

    @rule(job_id=consumes(ids))
    def look_at_one_for_the_last_time(self, job_id: str) -> None:
        self.ask(job_id)

    # what always holds

    @invariant()
    def the_store_is_sound(self) -> None:
        if hasattr(self, "store"):
            assert self.store.check_integrity() == []

    def show(self, job: Job) -> None:
        """Show a job to its client: it is on disk first."""
        state, seq = job.state, job.seq
        self.await_(self.store.settle(job))
        known = self.known[job.id]
        assert seq >= known.seq
        if known.state.is_terminal:
            assert (state, seq) == (known.state, known.seq), "an end is the end"
        elif not state.is_terminal:
            assert ON_THE_WAY.index(state) >= ON_THE_WAY.index(known.state)
        if state is not known.state:
            assert seq > known.seq
        known.state, known.seq = state, seq
        assert job.request.priority == known.priority
        assert (self.await_(self.store.webhooks.find(job.id)) is not None) == state.is_terminal
        assert not state.is_terminal or job.credentials is None

    def teardown(self) -> None:
        if hasattr(self, "store"):
            for job in list(self.store.jobs.values()):
                job.end(JobState.CANCELLED, "the test is over", at_ms=2)
                self.await_(self.await_commit(job))
            for job_id, known in self.known.items():
                self.ask(job_id)
                assert known.state.is_terminal, f"{job_id} was acknowledged and has not ended"
            self.await_(self.store.close())
        self.loop.close()
        shutil.rmtree(self.folder)

    # the parts

    async def open(self) -> None:
        self.store = JobStore(self.folder)
        await self.store.open()
        gate, info = Gate(), QueueInfo(self.store.jobs.values, lambda: 1, RunClock(), lambda priority: 0)
        gate.open()
        self.admission = Admission(self.store, gate, LIMITS, info, lambda: 2**40)

    async def die(self) -> None:
        """End the store as SIGKILL does: no commit begins any more, and the locks of the process are gone."""
        store, commits = self.store, self.store._commits
        assert commits._writer is not None
        commits._writer.cancel()
        await asyncio.gather(commits._writer, return_exceptions=True)
        if commits._later is not None:
            commits._later.cancel()
        await store.database.close()
        store._held.release()

    async def admit(self, job_id: str, body: str, priority: int) -> Any:
        async def make_job() -> Job:
            await asyncio.sleep(0)
            request = JobRequest(priority=priority)
            kept = Credentials(webhook_secret="hush")
            return Job(job_id, self.store.take_number(), body, request, {"1": {}}, JobTimes(0), kept)

        return await self.admission.admit(job_id, body, make_job, priority)

    async def save_end(self, job: Job) -> asyncio.Future[None]:
        row = WebhookRow(job.id, job.id, "http://x", b"{}", None, 1.0, False, "pending", 0, 0, 2**40)
        return self.store.save(job, webhook_insert(row))

    async def save_soon(self, job: Job) -> None:
        self.store.save_soon(job)

    async def await_commit(self, job: Job) -> None:
        await (await self.save_end(job))

    def await_(self, awaitable: Coroutine[Any, Any, Result] | asyncio.Future[Result]) -> Result:
        return self.loop.run_until_complete(awaitable)


async def gather(*awaitables: Coroutine[Any, Any, Any]) -> list[Any]:
    return list(await asyncio.gather(*awaitables, return_exceptions=True))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("num_examples", [6, pytest.param(200, marks=pytest.mark.slow)])
def test_whatever_happens_every_acknowledged_job_ends_once_and_nothing_shown_goes_back(
    tmp_path: Path, num_examples: int
) -> None:
    give_database(tmp_path)

    class Jobs(JobsOfAWorker):
        template = tmp_path

    quiet = settings(
        max_examples=num_examples,
        stateful_step_count=30,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        print_blob=True,
    )
    Jobs.TestCase.settings = quiet
    Jobs.TestCase().runTest()
