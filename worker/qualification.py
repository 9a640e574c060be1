"""Runs the start-up benchmark: `benchmark/qualify.py` decides what, this sends it through the engine's own queue.

The report is stored with the jobs; a restart on the same device with the same settings reuses it.
"""

from __future__ import annotations

import json
import random
import struct
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import structlog

from benchmark.qualify import (
    BenchmarkPlan,
    CheckpointFact,
    DeviceFact,
    RunTiming,
    failed,
    parse_prompts,
    plan,
    report,
    skipped,
)
from worker.engine.client import EngineClient
from worker.engine.pool import EnginePool
from worker.errors import WorkerError
from worker.jobs.store import JobStore
from worker.settings import BenchmarkConfig

FACT = "benchmark"
TIMEOUT_SECONDS = 600.0
FIRST = (-1000, 0)  # before every job
FIRST_CONVOLUTION = "model.diffusion_model.input_blocks.0.0.weight"
MAX_HEADER_BYTES = 100 * 1024 * 1024
PROMPTS = Path(__file__).resolve().parents[1] / "misc" / "test_prompts.txt"

log = structlog.get_logger("benchmark")


class StepWatch:
    """Takes the time between the sampler's first and last message."""

    def __init__(self, sampler_ids: Sequence[str]) -> None:
        self._sampler_ids = sampler_ids
        self._began: float | None = None
        self.seconds: float | None = None

    def hear(self, kind: str, data: Mapping[str, Any]) -> None:
        if kind != "executing":
            return
        now = time.monotonic()
        if data.get("node") in self._sampler_ids:
            self._began = now
        elif self._began is not None and self.seconds is None:
            self.seconds = now - self._began


class Qualifier:
    def __init__(self, config: BenchmarkConfig, pool: EnginePool, store: JobStore, models: Path) -> None:
        self._config = config
        self._pool = pool
        self._store = store
        self._models = models

    async def qualify(self) -> dict[str, Any]:
        """What `GET /benchmark` shows; `verdict` is pass, skipped or failed."""
        if self._config.mode == "off":
            return skipped("BENCHMARK=off").model_dump()
        try:
            chosen = await self._plan(self._pool.any_client)
        except WorkerError as error:
            return failed(error.message).model_dump()
        if chosen is None:
            return skipped("The engine has neither a full-size checkpoint nor DarkroomRandomCheckpoint").model_dump()
        stored: dict[str, Any] | None = await self._store.fact(FACT)
        if stored is not None and stored.get("cache_key") == chosen.cache_key:
            return {**stored, "is_reused": True}
        try:
            made = report(chosen, await self._run(chosen)).model_dump()
        except WorkerError as error:
            return failed(error.message, chosen).model_dump()
        await self._store.set_fact(FACT, made)
        log.info("benchmark done", its_per_second=made["its_per_second"], seconds=made["seconds_per_picture"])
        return {**made, "is_reused": False}

    async def _plan(self, engine: EngineClient) -> BenchmarkPlan | None:
        info = await engine.object_info()
        devices = (await engine.system_stats()).get("devices") or [{}]
        device = DeviceFact(name=str(devices[0].get("name", "unknown")), kind=str(devices[0].get("type", "cpu")))
        names = info.get("CheckpointLoaderSimple", {}).get("input", {}).get("required", {}).get("ckpt_name", [[]])[0]
        folder = self._models / "checkpoints"
        facts = [CheckpointFact(name=name, base_channels=base_channels(folder / name)) for name in names]
        has_random = "DarkroomRandomCheckpoint" in info
        prompts = parse_prompts(PROMPTS.read_text()) if PROMPTS.is_file() else ()
        return plan(self._config, device, facts, prompts, random.Random(), has_random_checkpoint=has_random)

    async def _run(self, chosen: BenchmarkPlan) -> list[RunTiming]:
        """Warm-up first, then the runs that count, each through a place in the queue as a job's."""
        await self._run_one(chosen.warm_up)
        return [await self._run_one(prompt) for prompt in chosen.timed]

    async def _run_one(self, prompt: Mapping[str, Any]) -> RunTiming:
        samplers = [node_id for node_id, node in prompt.items() if node["class_type"] == "KSampler"]
        watch = StepWatch(samplers)
        async with self._pool.engine(FIRST) as engine:
            began = time.monotonic()
            outcome = await engine.run(prompt, f"benchmark-{uuid.uuid4()}", watch.hear, timeout_seconds=TIMEOUT_SECONDS)
            total = time.monotonic() - began
        if outcome.error is not None:
            raise outcome.error
        return RunTiming(total_seconds=total, sampling_seconds=watch.seconds)


def base_channels(path: Path) -> int | None:
    """Output channels of the UNet's first convolution, read from a safetensors header; None where there is none."""
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > MAX_HEADER_BYTES:
                return None
            shape = json.loads(file.read(length))[FIRST_CONVOLUTION]["shape"]
            return int(shape[0])
    except (OSError, ValueError, KeyError, IndexError, TypeError, struct.error):
        return None
