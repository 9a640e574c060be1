"""Costs and progress of the jobs that a new front finds on disk, read from their prompts as when they were made."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace

from darkroom.contract.graph.cost import Price
from darkroom.contract.graph.prompt_graph import ModelFile
from darkroom.contract.graph.work import PromptWork
from darkroom.worker.api.request_warnings import assumed_cost_warnings
from darkroom.worker.autoscaler.platform import Platform
from darkroom.worker.engines.client.client import EngineClient
from darkroom.worker.engines.families import Family
from darkroom.worker.errors import EngineUnreachable
from darkroom.worker.json.values import JsonObject
from darkroom.worker.settings.workload import Workload
from darkroom.worker.storage.job import Job
from darkroom.worker.storage.progress import Progress, steps_of


async def read_again(jobs: Sequence[Job], engine: EngineClient, platform: Platform) -> None:
    """Set the cost and the steps of jobs by an engine's node classes and by the families of their models.

    What the engine does not answer is assumed, and the job's result warns of an assumed cost as that of a new job does.
    """
    if not jobs:
        return
    object_info = await _object_info(engine)
    works = [PromptWork(job.prompt, object_info) for job in jobs]
    families = await _families(works, engine) if platform.workload is Workload.COMPUTED else {}
    tells_families = bool(engine.facts.families.last())
    for job, work in zip(jobs, works, strict=True):
        price, steps = await asyncio.to_thread(_read, work, families, platform)
        job.cost, job.progress = price.cost, Progress(steps)
        if tells_families:
            warnings = [item for item in assumed_cost_warnings(price) if item not in job.request.warnings]
            job.request = replace(job.request, warnings=(*job.request.warnings, *warnings))


def _read(work: PromptWork, families: Mapping[ModelFile, Family], platform: Platform) -> tuple[Price, dict[str, float]]:
    return platform.price_of(work, families), steps_of(work)


async def _object_info(engine: EngineClient) -> JsonObject:
    """Return the node classes of an engine; none of one that does not answer, so that they count as ComfyUI's own."""
    try:
        return await engine.known_object_info()
    except EngineUnreachable:
        return {}


async def _families(works: Sequence[PromptWork], engine: EngineClient) -> Mapping[ModelFile, Family]:
    """Return the families of the models that prompts name; without an answer of the engine none are known."""
    named = await asyncio.to_thread(lambda: [work.graph.model_files for work in works])
    try:
        return await engine.facts.families_of(dict.fromkeys(file for files in named for file in files))
    except EngineUnreachable:
        return {}
