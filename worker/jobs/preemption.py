"""Preemption: an urgent job takes the engine from one of lower priority, whose checkpoint keeps what it has drawn.

The other one is interrupted at its next sampling step and waits for its turn again, without an attempt lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

import structlog

from darkroom.worker.engines.client.client import EngineClient
from darkroom.worker.engines.outcome import RunOutcome
from darkroom.worker.storage.job import Job, Stage

SETTLE_SECONDS = 0.05  # in which a job gets a free slot, if there is one

log = structlog.get_logger("jobs")


class PromptPreempted(Exception):
    """A prompt was interrupted for an urgent job."""


@dataclass(slots=True)
class _Run:
    job: Job
    engine: EngineClient
    task: asyncio.Task[RunOutcome]
    is_preempted: bool = False


class Preemption:
    """Runs at the engines, of which those of lower priority make way for urgent jobs. `least_priority` None: never."""

    def __init__(self, least_priority: int | None) -> None:
        self._least_priority = least_priority
        self._runs: dict[str, _Run] = {}

    async def run(self, job: Job, engine: EngineClient, running: Coroutine[Any, Any, RunOutcome]) -> RunOutcome:
        """Return the outcome of a job's run at an engine. Raises PromptPreempted where an urgent job took its place."""
        run = _Run(job, engine, asyncio.create_task(running, name=f"run-{job.id}"))
        self._runs[job.id] = run
        try:
            return await run.task
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if not run.is_preempted or (current is not None and current.cancelling()):
                raise
            raise PromptPreempted(job.id) from None
        finally:
            del self._runs[job.id]

    async def make_way(self, job: Job) -> None:
        """Interrupt a run for a job that gets no slot of an engine. Cancel this once it has one."""
        await asyncio.sleep(SETTLE_SECONDS)
        run = self._lowest(job, list(self._runs.values()))
        if run is not None:
            await run.engine.runner.recall_waiting()  # else the next one there would begin first
            self._interrupt(run, job)

    def make_way_at(self, engine: EngineClient, job: Job) -> None:
        """Interrupt the run that a job waits behind at its engine."""
        run = self._lowest(job, [run for run in self._runs.values() if run.engine is engine])
        if run is not None:
            self._interrupt(run, job)

    def _lowest(self, job: Job, runs: list[_Run]) -> _Run | None:
        """Return the run to interrupt: of the lowest priority, and of those the one that began last."""
        if self._least_priority is None or job.request.priority < self._least_priority:
            return None
        fitting = [run for run in runs if _makes_way(run, job)]
        return min(fitting, key=lambda run: (run.job.request.priority, -run.job.began_at), default=None)

    def _interrupt(self, run: _Run, job: Job) -> None:
        if not run.task.done() and not run.is_preempted:
            log.info("job preempted", request_id=run.job.id, by=job.id)
            run.is_preempted = True
            run.task.cancel()


def _makes_way(run: _Run, job: Job) -> bool:
    """Return True for a run whose job would have waited for the other one, had that been there: none waits for ever."""
    other = run.job
    is_lower = other.request.priority < job.request.priority and job.order < other.order
    return is_lower and other.stage is Stage.RUNNING and run.engine.has_check and not run.is_preempted
