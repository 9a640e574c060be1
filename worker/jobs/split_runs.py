"""SplitRuns: one job's prompt on several engines at once, where engines are idle and the prompt has parts.

A part whose engine is lost, or is short of memory, runs again at the job's first engine. The loss of that one is the
loss of the job's run, as if it had been alone there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import structlog

from darkroom.worker.concurrency.off_loop import needs_thread, off_loop
from darkroom.worker.engines.client.client import EngineClient
from darkroom.worker.engines.client.run import OnMessage
from darkroom.worker.engines.outcome import RunOutcome
from darkroom.worker.engines.pool import EnginePool
from darkroom.worker.errors import EngineUnreachable, OutOfMemory
from darkroom.worker.json.values import JsonObject, object_at
from darkroom.worker.prompts.prompt_parts import PromptSplit, split_prompt
from darkroom.worker.storage.job import SPLIT, Job

EXACT = "exact"
"""The quality that allows no rounding."""

log = structlog.get_logger("jobs")


@dataclass(frozen=True, slots=True)
class RunPart:
    """A prompt to send to an engine; `targets` None: all its output nodes.

    `own_nodes` are the nodes that no earlier part runs; None for the first part. `is_again`: its first engine was lost.
    """

    engine: EngineClient
    prompt: JsonObject
    prompt_id: str
    targets: Sequence[str] | None = None
    own_nodes: frozenset[str] | None = None
    is_again: bool = False

    @property
    def is_first(self) -> bool:
        return self.own_nodes is None

    def reports(self, on_message: OnMessage) -> OnMessage:
        """Return the callback for the engine's messages.

        A later part reports nodes that it has left as cached ones, which are done without a place in the progress.
        """
        own_nodes = self.own_nodes
        if own_nodes is None:
            return on_message
        running: set[str] = set()

        def report(kind: str, data: Mapping[str, Any]) -> None:
            if kind == "executing":
                left = sorted(running & own_nodes)
                running.clear()
                running.add(str(data.get("node")))
                if left:
                    on_message("execution_cached", {"nodes": left})

        return report


RunsPart = Callable[[RunPart], Awaitable[RunOutcome]]


def num_engines_of(outcome: RunOutcome) -> int:
    """Return the number of engines that ran a prompt at the same time."""
    found = object_at(outcome.tuning, SPLIT).get("engines", 1)
    return found if isinstance(found, int) else 1


class _PartFailed(Exception):
    """A part that ended without its outputs, for a reason that counts for the whole prompt."""

    def __init__(self, outcome: RunOutcome) -> None:
        super().__init__("part failed")
        self.outcome = outcome


class SplitRuns:
    """Runs of prompts at the engines of a pool, split where a job's request asks for it."""

    def __init__(self, pool: EnginePool) -> None:
        self._pool = pool

    async def run(
        self, job: Job, prompt: JsonObject, engine: EngineClient, runs_part: RunsPart, *, is_there: bool = False
    ) -> RunOutcome:
        """Run a placed prompt at `engine`, and parts of it at idle engines with the same folders.

        `is_there`: `engine` has the whole prompt already. Return the joined outcome. Raises what `runs_part` raises
        for `engine`.
        """
        if is_there or not job.request.is_split:
            return await runs_part(RunPart(engine, prompt, job.prompt_id))
        helpers = self._helpers(job, engine)
        split = await self._split(job, prompt, engine, 1 + len(helpers))
        helpers = [client for client in helpers if client in self._pool.idle_engines][: max(0, len(split.parts) - 1)]
        if split.parts and len(helpers) + 1 < len(split.parts):
            split = PromptSplit(reason="other engines got prompts meanwhile")
        if not split.parts:
            outcome = await runs_part(RunPart(engine, prompt, job.prompt_id))
            return _with_report(outcome, {"engines": 1, "reason": split.reason})
        engines = [engine, *helpers]
        with self._pool.borrow(helpers, job.order):
            log.info("job split", request_id=job.id, by=split.by, engines=len(engines))
            outcomes = await self._run_parts(_parts_of(job, engines, split), runs_part)
        return _with_report(_joined(outcomes, split), {"engines": len(engines), "by": split.by})

    def _helpers(self, job: Job, engine: EngineClient) -> list[EngineClient]:
        """Return the idle engines that read and write the same folders as a job's engine."""
        if job.request.engine or engine.folders is None or self._pool.num_prompts_at(engine) > 1:
            return []
        others = [client for client in self._pool.idle_engines if client is not engine]
        return [client for client in others if _shares_folders(client, engine)]

    async def _split(self, job: Job, prompt: JsonObject, engine: EngineClient, num_engines: int) -> PromptSplit:
        """Return at least two parts of a prompt, or the reason why it is run whole."""
        if job.attempt > 1 or job.runs_alone:
            return PromptSplit(reason="an engine was lost or short of memory")
        if num_engines < 2:
            return PromptSplit(reason="no other engine of this worker is idle")
        try:
            info = await engine.object_info()
        except EngineUnreachable:  # its run will tell
            return PromptSplit(reason="the engine does not answer")
        may_round, is_large = job.request.quality != EXACT, needs_thread(prompt)
        return await off_loop(is_large, partial(split_prompt, may_round=may_round), prompt, info, num_engines)

    async def _run_parts(self, parts: Sequence[RunPart], runs_part: RunsPart) -> list[RunOutcome]:
        """Return the outcomes of all parts, or that of the one that failed."""
        tasks = [asyncio.create_task(_run_part(part, runs_part), name=f"part-{part.prompt_id}") for part in parts]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            found = []
            for part, task in zip(parts, tasks, strict=True):
                if not task.done():  # another one has failed
                    continue
                outcome = task.result()
                found.append(outcome or await _run_again(part, parts[0].engine, runs_part))
            return found
        except _PartFailed as failed:
            return [failed.outcome]
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _run_part(part: RunPart, runs_part: RunsPart) -> RunOutcome | None:
    """Return the outcome of a part; None for one that is to run again at another engine. Raises _PartFailed."""
    try:
        outcome = await runs_part(part)
    except EngineUnreachable as lost:
        if part.is_first:
            raise
        log.warning("part of job lost", prompt_id=part.prompt_id, reason=lost.message)
        return None
    if not part.is_first and (isinstance(outcome.error, OutOfMemory) or outcome.was_interrupted):
        return None
    if outcome.error is not None or outcome.was_interrupted:
        raise _PartFailed(outcome)
    return outcome


async def _run_again(part: RunPart, engine: EngineClient, runs_part: RunsPart) -> RunOutcome:
    outcome = await runs_part(replace(part, engine=engine, prompt_id=f"{part.prompt_id}.part0", is_again=True))
    if outcome.error is not None or outcome.was_interrupted:
        raise _PartFailed(outcome)
    return outcome


def _shares_folders(client: EngineClient, other: EngineClient) -> bool:
    ours, theirs = client.folders, other.folders
    if ours is None or theirs is None or not client.has_check:
        return False
    return (ours.input, ours.output) == (theirs.input, theirs.output)


def _parts_of(job: Job, engines: Sequence[EngineClient], split: PromptSplit) -> list[RunPart]:
    first, *others = split.parts
    parts = [RunPart(engines[0], first.prompt, f"{job.prompt_id}.part1", first.targets)]
    for number, (engine, part) in enumerate(zip(engines[1:], others, strict=True), start=2):
        own_nodes = part.nodes - first.nodes
        prompt_id = f"{job.prompt_id}.part{number}"
        parts.append(RunPart(engine, part.prompt, prompt_id, part.targets, own_nodes))
    return parts


def _joined(outcomes: Sequence[RunOutcome], split: PromptSplit) -> RunOutcome:
    """Return the outcome of a whole prompt; what one part shows comes once, items of a batch in their order."""
    first = outcomes[0]
    if len(outcomes) < len(split.parts):
        return first
    shown: dict[str, Mapping[str, Any]] = {}
    for outcome in outcomes:
        for node_id, items in outcome.outputs.items():
            if node_id not in shown:
                shown[node_id] = items
            elif node_id in split.by_item:
                shown[node_id] = _appended(shown[node_id], items)
    order = {node_id: number for number, node_id in enumerate(split.parts[0].prompt)}
    outputs = dict(sorted(shown.items(), key=lambda item: order.get(item[0], len(order))))
    warnings = [warning for outcome in outcomes for warning in outcome.warnings]
    told = tuple(warning for number, warning in enumerate(warnings) if warning not in warnings[:number])
    return replace(first, outputs=outputs, entry={**first.entry, "outputs": outputs}, warnings=told)


def _appended(items: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    return {name: [*items.get(name, ()), *more.get(name, ())] for name in (*items, *(more.keys() - items.keys()))}


def _with_report(outcome: RunOutcome, report: JsonObject) -> RunOutcome:
    return replace(outcome, tuning={**outcome.tuning, SPLIT: dict(report)})
