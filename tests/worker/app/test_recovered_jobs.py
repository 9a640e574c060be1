"""Jobs that a new front finds on disk are priced as they were when they were made."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from darkroom.contract.graph.prompt_graph import ModelFile
from darkroom.worker.app.recovered_jobs import read_again
from darkroom.worker.autoscaler.autoscaler import FanOut
from darkroom.worker.autoscaler.platform import Platform
from darkroom.worker.engines.families import Family
from darkroom.worker.errors import EngineUnreachable
from darkroom.worker.settings.workload import Workload
from darkroom.worker.storage.job import Job, JobRequest, JobTimes
from tests.worker.engines.test_families import LARGE, PLAIN

LOADER = {"input": {"required": {"what": [["a.safetensors"]]}}, "output": ["MODEL"], "python_module": "custom_nodes.p"}
SAMPLER = {"output": ["LATENT"], "python_module": "custom_nodes.p"}
CHECKPOINTS = {"input": {"required": {"ckpt_name": [["a.safetensors"]]}}, "output": ["MODEL"], "python_module": "nodes"}
INFO = {"PackLoader": LOADER, "PackSampler": SAMPLER, "CheckpointLoaderSimple": CHECKPOINTS}
PROMPT = {
    "1": {"class_type": "PackLoader", "inputs": {"what": "a.safetensors"}},
    "2": {"class_type": "PackSampler", "inputs": {"steps": 8, "model": ["1", 0], "sampler_name": "euler", "cfg": 4.0}},
}


class Engine:
    """An engine that tells its classes and families, or is away."""

    def __init__(self, *, is_away: bool = False, families: Mapping[ModelFile, Family] | None = None) -> None:
        self._is_away, self._families = is_away, families or {}
        self.facts: Any = SimpleNamespace(
            families_of=self._families_of, families=SimpleNamespace(last=lambda: (PLAIN,))
        )

    async def known_object_info(self) -> Mapping[str, Any]:
        if self._is_away:
            raise EngineUnreachable("away")
        return INFO

    async def _families_of(self, files: Collection[ModelFile]) -> Mapping[ModelFile, Family]:
        if self._is_away:
            raise EngineUnreachable("away")
        return {file: family for file, family in self._families.items() if file in files}


async def recovered(engine: Any, workload: Workload = Workload.COMPUTED) -> Job:
    job = Job("one", 1, "hash", JobRequest(), PROMPT, JobTimes(5))
    for _ in range(2):  # at a second start too, with the warnings that it has already
        await read_again([job], engine, Platform(FanOut(()), cast(Any, None), workload))
    return job


async def test_the_classes_of_the_engine_say_what_a_recovered_job_loads_and_samples() -> None:
    file = ModelFile("checkpoints", "a.safetensors")
    known, unknown = await recovered(Engine(families={file: LARGE})), await recovered(Engine())
    assert known.cost == pytest.approx(LARGE.pixel_cost * 4 * unknown.cost), "1024 x 1024 pixels"
    assert known.progress.steps == {"2": 8.0} and known.request.warnings == ()
    assert [(item["type"], item["message"][:13]) for item in unknown.request.warnings] == [
        ("cost_assumed", "a.safetensors")
    ]


async def test_without_an_answer_of_the_engine_a_recovered_job_is_priced_by_what_is_known_without_it() -> None:
    away = await recovered(Engine(is_away=True))
    assert away.cost > 0 and away.progress.steps == {}
    assert (await recovered(Engine(is_away=True), Workload.ONE)).cost == 1.0
