"""Tuning of an engine as part of the start-up benchmark: stored outcomes are handed to it, else it measures."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any, Final

import structlog

from darkroom.worker.engines.client.client import EngineClient
from darkroom.worker.errors import WorkerError
from darkroom.worker.qualification.facts import EngineFacts
from darkroom.worker.qualification.tuning_store import TuningStore
from darkroom.worker.qualification.workload import TextToImage, Workload

ROUTE: Final = "/api/v1/tuning"
MEASURE_SECONDS: Final = 1800.0
CPU_SIDE_PX, CPU_STEPS, CPU_SETTLE_SECONDS, CPU_TURNS_SECONDS = 64, 4, 60.0, 0.3
GPU_STEPS, GPU_SETTLE_SECONDS, GPU_TURNS_SECONDS = 12, 240.0, 1.5

AUTO: Final = "auto"
SETTING: Final = "tuning_setting"  # of a stored outcome: TUNING, where it was not `auto`

BUDGET_SECONDS = 30.0  # as long as the rest of a start takes; a longer one is for `POST /api/v1/tuning`

log = structlog.get_logger("tuning")


class EngineTuning:
    """Tuning of engines, with outcomes kept by kind of machine: GPU, driver, torch, engine and precision.

    `setting` is TUNING. Strategies that do not fit into `budget_seconds` of a start are not used.
    """

    def __init__(self, setting: str, state_directory: Path, budget_seconds: float = BUDGET_SECONDS) -> None:
        self._setting = setting.strip().lower() or AUTO
        self._budget_seconds = budget_seconds
        self._store = TuningStore(state_directory)

    @property
    def has_stored(self) -> bool:
        return self._setting != "off" and self._store.has_outcomes

    async def adopt(self, engine: EngineClient, facts: EngineFacts, driver: str | None) -> list[dict[str, Any]]:
        """Give an engine the stored outcomes for its machine; return those that it took.

        Those of an older form are for no network that is known, and the engine takes none of them: the log says so.
        """
        stored = await asyncio.to_thread(self._store.find, machine_key(facts, driver))
        return [outcome for outcome in stored if await _adopt(engine, outcome)]

    async def tune(
        self, engine: EngineClient, facts: EngineFacts, workload: Workload, driver: str | None, *, is_forced: bool
    ) -> tuple[dict[str, Any] | None, str | None]:
        """Return the engine's tuning for the report, or why there is none.

        Stored outcomes are used, unless `is_forced`; without one for the benchmark's model that was measured under the
        same setting the engine measures, which takes seconds to minutes.
        """
        if self._setting == "off":
            return None, "TUNING=off"
        if not facts.has_probe:
            return None, "A foreign engine is not tuned"
        began = time.monotonic()
        key = machine_key(facts, driver)
        adopted = [] if is_forced else await self.adopt(engine, facts, driver)
        if adopted and not (isinstance(workload, TextToImage) and self._is_new(workload, adopted)):
            return _report(adopted, key, time.monotonic() - began, is_reused=True), None
        if not isinstance(workload, TextToImage):
            return None, "The workflow is the user's own"
        try:
            body = request_for(workload, is_cpu=facts.device.is_cpu) | {"budget_seconds": self._budget_seconds}
            status, outcome = await engine.calls.ask("POST", ROUTE, body, timeout_seconds=MEASURE_SECONDS)
        except WorkerError as error:
            return None, error.message
        if status != 200:
            return None, str(outcome.get("error") or f"The engine answered {status}")
        if self._setting != AUTO:  # which strategies are measured depends on it
            outcome[SETTING] = self._setting
        try:
            await asyncio.to_thread(self._store.store, key, outcome)
        except OSError as error:
            log.error("tuning not stored", reason=str(error))
        log.info("tuning measured", seconds=outcome.get("seconds"), choices=chosen_names(outcome))
        others = [item for item in adopted if _network_of(item) != _network_of(outcome)]
        return _report([*others, outcome], key, time.monotonic() - began, is_reused=False), None

    def _is_new(self, workload: TextToImage, outcomes: list[dict[str, Any]]) -> bool:
        """Return True for a model that none of the outcomes was measured with under this setting."""
        measured = {item["workload"].get("model") for item in outcomes if item.get(SETTING, AUTO) == self._setting}
        scale = workload.scale
        name = workload.checkpoint if scale is None else f"random:{workload.family.name or 'default'}:{scale}"
        return name not in measured


def _report(outcomes: list[dict[str, Any]], key: str, seconds: float, *, is_reused: bool) -> dict[str, Any]:
    return {"is_reused": is_reused, "machine_key": key, "seconds": round(seconds, 3), "outcomes": outcomes}


def _network_of(outcome: dict[str, Any]) -> tuple[object, object]:
    return outcome.get("network"), outcome.get("fingerprint")


async def _adopt(engine: EngineClient, outcome: dict[str, Any]) -> bool:
    """Give the engine a stored outcome. Return False for one that it does not take, such as an older version's."""
    try:
        status, reply = await engine.calls.ask("PUT", ROUTE, outcome)
    except WorkerError as error:
        log.warning("tuning not adopted", reason=error.message)
        return False
    if status != 200:
        log.warning("tuning not adopted", reason=str(reply.get("error") or status))
    return status == 200


def machine_key(facts: EngineFacts, driver: str | None) -> str:
    """Return a key that is equal for machines whose outcomes are interchangeable."""
    versions = facts.versions
    parts = (
        versions.get("processor") or facts.device.product, driver, versions.get("torch"), versions.get("cuda"),
        versions.get("engine"), versions.get("precision"),
    )  # fmt: skip
    return "|".join(part or "" for part in parts)


def request_for(workload: TextToImage, *, is_cpu: bool) -> dict[str, object]:
    """Return the body that asks an engine to measure with the benchmark's model; on a CPU with a small image."""
    family = workload.family
    model: dict[str, object] = (
        {"checkpoint": workload.checkpoint}
        if workload.scale is None
        else {"family": family.name or None, "scale": workload.scale}
    )
    side = CPU_SIDE_PX if is_cpu else max(workload.width_px, workload.height_px)
    return {
        **model,
        "width_px": min(workload.width_px, side),
        "height_px": min(workload.height_px, side),
        "num_steps": CPU_STEPS if is_cpu else GPU_STEPS,
        "cfg": family.cfg,
        "sampler_name": family.sampler_name,
        "scheduler": family.scheduler,
        "settle_seconds": CPU_SETTLE_SECONDS if is_cpu else GPU_SETTLE_SECONDS,
        "turns_seconds": CPU_TURNS_SECONDS if is_cpu else GPU_TURNS_SECONDS,
    }


def chosen_names(outcome: dict[str, Any]) -> dict[str, list[str]]:
    """Return the names of the chosen strategies by quality."""
    choices = outcome.get("choices")
    return {quality: item["names"] for quality, item in choices.items()} if isinstance(choices, dict) else {}
