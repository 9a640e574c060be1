"""FetchStage: a job's inputs and models are fetched before it waits for an engine."""

from __future__ import annotations

import time

from darkroom.contract.graph.prompt_graph import PromptGraph
from darkroom.worker.engines.client.client import EngineClient
from darkroom.worker.engines.client.lost import EngineLost
from darkroom.worker.errors import EngineAnswerInvalid, EngineUnreachable
from darkroom.worker.jobs.fair_turns import FairTurns
from darkroom.worker.jobs.pipeline.changes import QUEUED_WORDS, JobChanges
from darkroom.worker.jobs.pipeline.durations import milliseconds_since
from darkroom.worker.jobs.pipeline.engine_turns import EngineTurns
from darkroom.worker.jobs.pipeline.parts import PipelineLimits, PipelineParts
from darkroom.worker.jobs.priority_semaphore import PrioritySemaphore
from darkroom.worker.json.values import JsonObject
from darkroom.worker.storage.job import Job, Stage
from darkroom.worker.storage.store import JobStore


class FetchStage:
    """Slots of the jobs that download inputs, and whose turn it is."""

    def __init__(
        self, store: JobStore, engines: EngineTurns, parts: PipelineParts, limits: PipelineLimits, changes: JobChanges
    ) -> None:
        self._engines = engines
        self._inputs = parts.inputs
        self._models = parts.models
        self._changes = changes
        self._slots = PrioritySemaphore(limits.num_fetching)
        self._turns = FairTurns(limits.num_fetching_of_caller, store.turn_ms)

    async def fetch(self, job: Job) -> JsonObject:
        """Fetch the inputs and return the prompt for the engine.

        Waits for an engine that is starting. Only downloads take a slot.
        """
        began = time.monotonic()
        async with self._engines.any_up(job) as engine:
            job.times.add("wait", milliseconds_since(began))
            began = time.monotonic()
            try:
                return await self._fetched(job, engine)
            finally:
                job.times.add("preprocess", milliseconds_since(began))

    def queue_for_engine(self, job: Job) -> None:
        """Let a job whose inputs are there wait for an engine."""
        if job.stage is Stage.FETCHING:
            self._changes.move(job, job.state, QUEUED_WORDS, Stage.WAITING)

    async def _fetched(self, job: Job, engine: EngineClient) -> JsonObject:
        object_info = await _object_info(engine)
        reads_early = engine.has_check and engine.folders is not None
        if self._models is not None and await self._models.fetch(
            job, object_info, lambda words: self._changes.say(job, words), reads_early=reads_early
        ):
            self._changes.say(job, "Preprocessing")
            object_info = await _object_info(engine)
        if not self._inputs.plan(PromptGraph(job.prompt, object_info)).pending_files:
            return job.prompt
        async with self._turns.turn(job), self._slots.acquire(job.order):
            return await self._inputs.fetch(job, engine)


async def _object_info(engine: EngineClient) -> JsonObject:
    """Return the engine's node classes while a job holds a slot there. Raises EngineLost."""
    try:
        return await engine.object_info()
    except EngineAnswerInvalid:
        raise
    except EngineUnreachable as error:
        raise EngineLost(error.message) from None
