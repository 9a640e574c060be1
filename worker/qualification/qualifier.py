"""Qualifier: runs one benchmark, from the facts of the engine to a report with a verdict.

`workload.py` and `verdict.py` decide; this module runs the workload through the engine's own queue, while the caller
holds back the engine's other prompts. A result of a good machine is kept and reused for a while.
"""

from __future__ import annotations

import asyncio
import ipaddress
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import structlog

from darkroom.contract.graph.cost import price_of
from darkroom.contract.graph.work import PromptWork
from darkroom.modifiers.registry import ModifierRegistry
from darkroom.worker.engines.address import UNIX_PREFIX
from darkroom.worker.engines.client.client import EngineClient
from darkroom.worker.engines.families import Family
from darkroom.worker.errors import SettingsInvalid, WorkerError
from darkroom.worker.json.values import JsonObject
from darkroom.worker.observe.gpu_sensors import GpuSensors
from darkroom.worker.qualification.benchmark_cache import BenchmarkCache, CachedBenchmark
from darkroom.worker.qualification.expectation import (
    PastRun,
    append_history,
    expect,
    history_line,
    read_history,
    read_reference,
)
from darkroom.worker.qualification.facts import EngineFacts, fact_of, read_facts
from darkroom.worker.qualification.own_workload import find_own_workload
from darkroom.worker.qualification.runs import run_timed
from darkroom.worker.qualification.sensors import SensorLog, open_sensors, watching
from darkroom.worker.qualification.tuning import EngineTuning
from darkroom.worker.qualification.verdict import (
    BenchmarkReport,
    Evidence,
    RunTiming,
    Speed,
    failed,
    judge,
    skipped,
    speed_of,
    wants_another,
)
from darkroom.worker.qualification.workload import (
    FamilyFact,
    OwnWorkload,
    TextToImage,
    Workload,
    calibration,
    choose_workload,
    estimated_workload_per_second,
    fit_to_cpu,
    parse_prompts,
    why_shrunk,
)
from darkroom.worker.settings.qualification import BenchmarkConfig

PROJECT = Path(__file__).resolve().parents[2]
PROMPTS = PROJECT / "misc" / "test_prompts.txt"

DRAWS_OWN_CHECKPOINT = "Text2Image"

FetchInputs = Callable[[Mapping[str, Any], EngineClient], Awaitable[Mapping[str, Any]]]

log = structlog.get_logger("benchmark")


class OnlyCachedRuns(SettingsInvalid):
    """Error when every run after the first came from the engine's cache."""

    code = "nothing_varies"


@dataclass(frozen=True, slots=True)
class Qualified:
    """Report of one engine. `has_emptied_memory`: the models that were on the device have been evicted."""

    report: BenchmarkReport
    is_reused: bool
    measured_at: float
    has_emptied_memory: bool = False

    @property
    def is_good(self) -> bool:
        return self.report.verdict.is_good


@dataclass(frozen=True, slots=True)
class Measured:
    """Runs of one benchmark. `ran` is the workload of the timed ones, on a CPU smaller than the requested one."""

    ran: Workload
    timings: tuple[RunTiming, ...]
    prompts: tuple[str, ...]
    first_run: RunTiming
    loading_seconds: float | None


class Qualifier:
    """Runner of benchmarks. `fetch_inputs` downloads the files that a workflow names by URL."""

    def __init__(
        self,
        config: BenchmarkConfig,
        base_directory: Path,
        state_directory: Path,
        registry: ModifierRegistry,
        fetch_inputs: FetchInputs,
    ) -> None:
        self._config = config
        self._models = base_directory / "models"
        self._places = (base_directory, base_directory.parent, PROJECT)
        self._registry = registry
        self._fetch_inputs = fetch_inputs
        self._cache = BenchmarkCache(state_directory)
        self._tuning = EngineTuning(config.tuning, state_directory)
        self._rng = random.Random()

    async def qualify(
        self,
        engine: EngineClient,
        *,
        is_forced: bool = False,
        is_retuned: bool = False,
        preloaded: Sequence[JsonObject] = (),
    ) -> Qualified:
        """Benchmark an engine. Never raises a WorkerError: a failure is the report's verdict `failed`.

        `is_forced`: ignore earlier results. `is_retuned`: also those of tuning. `preloaded`: the models that were just
        loaded, as the engine reported.
        """
        if self._config.mode == "off" and not is_forced:
            await self._adopt_tuning(engine)
            return now(skipped("BENCHMARK=off"))
        try:
            made = await self._qualify(engine, is_forced, is_retuned, preloaded)
        except WorkerError as error:
            return now(failed(error.message))
        except Exception as error:  # noqa: BLE001 - the benchmark: its own bug must not end the worker
            log.exception("benchmark failed")
            return now(failed(f"The benchmark broke: {type(error).__name__}: {error}"))
        return made

    async def _qualify(
        self, engine: EngineClient, is_forced: bool, is_retuned: bool, preloaded: Sequence[JsonObject]
    ) -> Qualified:
        facts = await read_facts(engine, self._models)
        workload = await self._choose(facts, engine)
        if workload is None:
            return now(
                skipped("The engine has neither a full-size checkpoint nor DarkroomRandomCheckpoint", facts.device)
            )
        sensors, missing = await _sensors_of(engine, facts)
        driver = None if sensors is None else sensors.driver
        key = cache_key(facts, workload, driver)
        tuning, no_tuning = await self._tuning.tune(engine, facts, workload, driver, is_forced=is_retuned)
        cached = None if is_forced else await asyncio.to_thread(self._find_cached, key, workload, facts)
        if cached is not None:
            log.info("benchmark reused", age_seconds=round(time.time() - cached.measured_at))
            return Qualified(cached.report.model_copy(update={"tuning": tuning}), True, cached.measured_at)
        report, ran = await self._measure(engine, facts, workload, sensors, missing, preloaded)
        missing_now = report.missing | ({} if no_tuning is None else {"tuning": no_tuning})
        report = report.model_copy(update={"cache_key": key, "tuning": tuning, "missing": missing_now})
        made = Qualified(report, False, time.time(), has_emptied_memory=await forget_network(engine, ran))
        await asyncio.to_thread(self._remember, key, made, facts, ran)
        return made

    async def _adopt_tuning(self, engine: EngineClient) -> None:
        """Give an engine that is not to be benchmarked the tuning that is stored for its machine."""
        if not engine.has_check or not await asyncio.to_thread(lambda: self._tuning.has_stored):
            return
        try:
            facts = await read_facts(engine, self._models)
            sensors, _ = await _sensors_of(engine, facts)
            await self._tuning.adopt(engine, facts, None if sensors is None else sensors.driver)
        except WorkerError as error:
            log.warning("tuning not adopted", reason=error.message)

    def forget(self, made: Qualified) -> None:
        """Remove the cached result of an engine whose device was lost, in case the front ends before the next run."""
        try:
            if made.report.cache_key is not None:
                self._cache.remove(made.report.cache_key)
        except OSError as error:
            log.error("benchmark result not removed", reason=str(error))

    async def _choose(self, facts: EngineFacts, engine: EngineClient) -> Workload | None:
        """Choose the workload.

        Raises SettingsInvalid and RequestRejected for a workflow that cannot be run, InputRejected for its files.
        """
        own = await asyncio.to_thread(
            find_own_workload, self._config, self._places, self._registry, facts.families_by_checkpoint()
        )
        if own is None:
            return choose_workload(
                self._config,
                facts.device,
                facts.checkpoints,
                has_random_checkpoint=facts.has_random_checkpoint,
                family=measured_family(self._config.family, facts.families),
                checkpoint=self._own_checkpoint(facts),
            )
        work = PromptWork(own.workflow, await engine.object_info())
        families = await engine.families.of(work.graph.model_files)
        workflow = dict(await self._fetch_inputs(own.workflow, engine))
        cost = price_of(work, families).cost
        fetched = own.model_copy(update={"workflow": workflow, "workload": cost})
        await engine.check(fetched.prompt("a photograph", self._rng))
        return fetched

    def _own_checkpoint(self, facts: EngineFacts) -> str:
        """Return the modifiers' own checkpoint where a GPU's engine has it and names no families; else nothing."""
        own = self._registry.checkpoint_of(DRAWS_OWN_CHECKPOINT, {})
        names = [fact.name for fact in facts.checkpoints if fact.family is None]
        return "" if facts.device.is_cpu or own is None or own not in names else own

    def _find_cached(self, key: str, workload: Workload, facts: EngineFacts) -> CachedBenchmark | None:
        """Return a cached result that today's settings accept, too."""
        cached = self._cache.find(key, time.time(), self._config.ttl_seconds)
        if cached is None or cached.report.seconds_per_picture is None:
            return None
        speed = Speed(
            its_per_second=cached.report.its_per_second,
            seconds_per_picture=cached.report.seconds_per_picture,
            best_seconds_per_picture=cached.report.best_seconds_per_picture or cached.report.seconds_per_picture,
            spread=cached.report.spread or 0.0,
            num_runs=cached.report.num_runs,
        )
        expectation = expect(self._config, workload, facts.device, self._history(), read_reference())
        judged = judge(speed, expectation, Evidence(is_cpu=facts.device.is_cpu))
        return cached if judged.verdict.is_good else None

    async def _measure(
        self,
        engine: EngineClient,
        facts: EngineFacts,
        workload: Workload,
        sensors: GpuSensors | None,
        missing: str | None,
        preloaded: Sequence[Mapping[str, Any]],
    ) -> tuple[BenchmarkReport, Workload]:
        began = time.monotonic()
        async with watching(sensors, missing) as seen:
            probe, no_probe = await _probe(engine, facts)
            measured = await self._run(engine, facts, workload)
        speed = speed_of(measured.timings)
        history = await asyncio.to_thread(self._history)  # may be on a shared volume of the fleet
        expectation = expect(self._config, measured.ran, facts.device, history, read_reference())
        evidence = Evidence(
            is_cpu=facts.device.is_cpu,
            fault=None if probe is None else probe.get("fault"),
            throttle_reasons=seen.harmful_reasons,
        )
        judged = judge(speed, expectation, evidence)
        load, no_load = load_rate(measured, facts, preloaded)
        ran = measured.ran
        report = BenchmarkReport(
            verdict=judged.verdict,
            reason=judged.reason,
            warnings=judged.warnings,
            **speed.model_dump(exclude={"num_runs"}),
            num_runs=speed.num_runs,
            model_load_gb_per_second=load,
            first_run_seconds=measured.first_run.total_seconds,
            workload=ran.workload,
            workload_per_second=_rate(ran, speed, probe),
            workload_is_estimate=ran.is_estimate,
            run_seconds=tuple(timing.total_seconds for timing in measured.timings),
            total_seconds=time.monotonic() - began,
            model=ran.model,
            width_px=ran.width_px if isinstance(ran, TextToImage) else None,
            height_px=ran.height_px if isinstance(ran, TextToImage) else None,
            steps=ran.num_steps if isinstance(ran, TextToImage) else None,
            shrunk=why_shrunk(workload, facts.device, ran),
            prompts=measured.prompts,
            device=facts.device,
            expectation=expectation if expectation.is_known else None,
            probe=probe,
            sensors=seen.as_json(),
            versions={**facts.versions, "driver": seen.driver},
            missing=_missing(seen, no_probe, no_load, probe, speed),
        )
        log.info(
            "benchmark done",
            verdict=report.verdict.value,
            reason=report.reason,
            its_per_second=report.its_per_second,
            seconds_per_picture=report.seconds_per_picture,
            workload_per_second=report.workload_per_second,
            seconds=report.total_seconds,
        )
        return report, ran

    async def _run(self, engine: EngineClient, facts: EngineFacts, workload: Workload) -> Measured:
        """Run the warm-up, whose time does not count, then the timed runs, each with a prompt and seed of its own."""
        texts = await asyncio.to_thread(_read_prompts)
        used: list[str] = []

        async def one(chosen: Workload) -> RunTiming:
            used.append(self._rng.choice(texts))
            return await run_timed(engine, chosen.prompt(used[-1], self._rng))

        is_cpu = facts.device.is_cpu
        ran: Workload = workload
        first = warm = loading = None
        if is_cpu and isinstance(workload, TextToImage):
            small = calibration(workload)
            first, again = await one(small), await one(small)
            loading = _loading_seconds(first, again)
            fitted = ran = fit_to_cpu(workload, small, again.total_seconds)
            if (fitted.width_px, fitted.height_px) == (small.width_px, small.height_px):
                warm = again
        warm = warm or await one(ran)
        used.clear()
        timings: list[RunTiming] = []
        while wants_another(timings, is_cpu=is_cpu):
            timings.append(await one(ran))
            if timings[-1].is_from_cache:
                raise OnlyCachedRuns(
                    "The benchmark's workflow has no seed, so its runs come from the engine's cache: "
                    'put "__RANDOM_INT__" where something random belongs'
                )
        if first is None:
            first, loading = warm, _loading_seconds(warm, timings[0])
        is_image = isinstance(ran, TextToImage)
        return Measured(ran, tuple(timings), tuple(used) if is_image else (), first, loading)

    def _history(self) -> list[PastRun]:
        """Return the fleet's history; empty where the file cannot be read, and the table of GPUs is used instead."""
        try:
            return read_history(self._config.history)
        except OSError as error:
            log.error("benchmark history unreadable", reason=str(error))
            return []

    def _remember(self, key: str, made: Qualified, facts: EngineFacts, ran: Workload) -> None:
        """Keep a result; a failed write costs a benchmark at the next start, not this one."""
        report, now = made.report, made.measured_at
        try:
            if report.verdict.is_good:
                self._cache.store(key, report, now)
            else:
                self._cache.remove(key)
            if self._config.history is not None:
                append_history(self._config.history, history_line(report, facts.device, ran, now))
        except OSError as error:
            log.error("benchmark result not stored", reason=str(error))


def measured_family(name: str, families: Sequence[Family]) -> FamilyFact:
    """Return the family to measure: the one of this name, else the default one.

    Raises SettingsInvalid for a name that the engine does not know.
    """
    if not name:
        return fact_of(families[0]) if families else FamilyFact()
    found = next((family for family in families if family.name == name), None)
    if found is None:
        known = ", ".join(family.name for family in families) or "none, as this engine names no families"
        raise SettingsInvalid(f"BENCHMARK_FAMILY: unknown family of models; got {name!r}, expected {known}")
    return fact_of(found)


def cache_key(facts: EngineFacts, workload: Workload, driver: str | None) -> str:
    """Return a key that is equal for runs with interchangeable results: GPU, driver, engine, model and size.

    Only our own engine identifies its GPU beyond the name; a foreign one is identified by its address.
    """
    size_bytes = next((fact.size_bytes for fact in facts.checkpoints if fact.name == workload.model), None)
    parts = (
        facts.versions.get("processor") or facts.device.product,
        facts.uuid,
        facts.address,
        driver,
        facts.versions.get("engine"),
        facts.versions.get("torch"),
        facts.versions.get("precision"),
        workload.model if size_bytes is None else f"{workload.model}:{size_bytes}",
        workload.size,
    )
    return "|".join(part or "" for part in parts)


def load_rate(
    measured: Measured, facts: EngineFacts, preloaded: Sequence[Mapping[str, Any]]
) -> tuple[float | None, str | None]:
    """Return the GB/s at which the model was loaded from its file, or why that is not known."""
    ran = measured.ran
    if isinstance(ran, OwnWorkload):
        return None, "The workflow is the user's own"
    if ran.scale is not None:
        return None, "Random weights are made on the device, no file is read"
    for entry in preloaded:
        if entry.get("name") == ran.checkpoint and entry.get("bytes") and entry.get("seconds"):
            return entry["bytes"] / entry["seconds"] / 1e9, None
    size_bytes = next((fact.size_bytes for fact in facts.checkpoints if fact.name == ran.checkpoint), None)
    if size_bytes is None:
        return None, "The model's file is not on this machine"
    if measured.loading_seconds is None:
        return None, "The model was there already"
    return size_bytes / measured.loading_seconds / 1e9, None


def is_local(url: str) -> bool:
    """Return True for an address of this machine."""
    if url.startswith(UNIX_PREFIX):
        return True
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _loading_seconds(first: RunTiming, again: RunTiming) -> float | None:
    """Return the extra time of the first run up to its first step.

    None when it had no extra work, or its steps were not seen.
    """
    if first.first_step_seconds is None or again.first_step_seconds is None:
        return None
    if first.num_executed <= again.num_executed:
        return None
    extra = first.first_step_seconds - again.first_step_seconds
    return extra if extra > 0 else None


async def _sensors_of(engine: EngineClient, facts: EngineFacts) -> tuple[GpuSensors | None, str | None]:
    """Return the sensors of an engine's GPU, or why there are none."""
    return await asyncio.to_thread(
        open_sensors,
        is_gpu=not facts.device.is_cpu,
        is_local=is_local(engine.url),
        uuid=facts.uuid,
        product=facts.device.product,
    )


async def _probe(engine: EngineClient, facts: EngineFacts) -> tuple[dict[str, Any] | None, str | None]:
    if not facts.has_probe:
        return None, "A foreign engine has no probe"
    try:
        status, body = await engine.calls.ask("POST", "/api/v1/probe")
    except WorkerError as error:
        return None, error.message
    return (body, None) if status == 200 else (None, str(body.get("error") or f"The engine answered {status}"))


async def forget_network(engine: EngineClient, ran: Workload) -> bool:
    """Evict the benchmark's random network from the device's memory, with any outcome of the benchmark."""
    if isinstance(ran, OwnWorkload) or ran.scale is None or not engine.has_check:
        return False
    try:
        await engine.calls.forget_unused()
    except WorkerError as error:  # the measurement is valid; losing an engine here is handled elsewhere
        log.warning("benchmark network not unloaded", reason=error.message)
        return False
    return True


def _rate(ran: Workload, speed: Speed, probe: Mapping[str, Any] | None) -> float:
    rate = ran.workload / speed.seconds_per_picture
    if not ran.is_estimate:
        return rate
    return estimated_workload_per_second(rate, None if probe is None else probe.get("matrix_tflops"))


def _missing(
    seen: SensorLog, no_probe: str | None, no_load: str | None, probe: Mapping[str, object] | None, speed: Speed
) -> dict[str, str]:
    is_cpu = seen.missing is not None and "CPU" in seen.missing
    found = {
        "sensors": seen.missing,
        "probe": no_probe,
        "model_load_gb_per_second": no_load,
        "probe.host_to_device_gb_per_second": "A CPU computes in the host's own memory" if probe and is_cpu else None,
        "probe.disk": "There is no model file to read" if probe and probe.get("disk") is None else None,
        "its_per_second": "No sampler's steps were seen" if speed.its_per_second is None else None,
    }
    return {name: why for name, why in found.items() if why is not None}


def _read_prompts() -> tuple[str, ...]:
    found = parse_prompts(PROMPTS.read_text(encoding="utf-8")) if PROMPTS.is_file() else ()
    return found or ("a photograph",)


def now(report: BenchmarkReport) -> Qualified:
    return Qualified(report, False, time.time())
