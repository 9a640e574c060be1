"""Warm-up of an engine before ready, beside the benchmark: models are loaded, workflows run once."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import structlog

from darkroom.modifiers.registry import ModifierRegistry
from darkroom.worker.engines.client.client import EngineClient
from darkroom.worker.errors import WorkerError
from darkroom.worker.qualification.own_workload import read_workflow
from darkroom.worker.qualification.qualifier import FetchInputs
from darkroom.worker.qualification.runs import run_timed
from darkroom.worker.qualification.workload import with_new_seeds
from darkroom.worker.settings.qualification import WarmUpConfig

KINDS = ("checkpoints", "diffusion_models", "text_encoders", "vae", "controlnet", "upscale_models", "clip_vision")

log = structlog.get_logger("warm_up")


class WarmUp:
    """Warm-up by the settings. Every returned entry has `seconds`, and `error` where it failed; no method raises."""

    def __init__(
        self,
        config: WarmUpConfig,
        registry: ModifierRegistry,
        fetch_inputs: FetchInputs,
        choose_models: Callable[[Sequence[str]], list[str]] = list,
    ) -> None:
        self._config = config
        self._choose_models = choose_models
        self._registry = registry
        self._fetch_inputs = fetch_inputs
        self._rng = random.Random()

    @property
    def must_succeed(self) -> bool:
        return self._config.on_fail == "error"

    async def preload(self, engine: EngineClient) -> list[dict[str, object]]:
        """Load PRELOAD_MODELS, one after the other, to the device; the engine's model memory keeps them."""
        names = await asyncio.to_thread(self._choose_models, self._config.models)
        return [await self._preload(engine, name) for name in names]

    async def run_workflows(self, engine: EngineClient) -> list[dict[str, object]]:
        """Run each of WARMUP_WORKFLOWS once."""
        return [await self._run(engine, path) for path in self._config.workflows]

    async def _preload(self, engine: EngineClient, name: str) -> dict[str, object]:
        model = split_kind(name)
        began = time.monotonic()
        try:
            if not engine.has_check:
                return _logged({**model, "seconds": 0.0, "error": "A foreign engine cannot preload models"})
            status, body = await engine.calls.ask("POST", "/api/v1/preload", {"models": [model], "keep": True})
        except WorkerError as error:
            return _logged({**model, "seconds": _since(began), "error": error.message})
        read = body.get("models")
        if isinstance(read, list) and read and isinstance(read[0], dict):
            return _logged({"seconds": _since(began), **read[0]})
        return _logged({**model, "seconds": _since(began), "error": f"The engine answered {status}"})

    async def _run(self, engine: EngineClient, path: Path) -> dict[str, Any]:
        began = time.monotonic()
        try:
            families = await engine.families.by_checkpoint()
            workflow = await asyncio.to_thread(read_workflow, path, "WARMUP_WORKFLOWS", self._registry, families)
            prompt = await self._fetch_inputs(with_new_seeds(workflow, self._rng), engine)
            await engine.check(prompt)
            await run_timed(engine, prompt)
        except WorkerError as error:
            return _logged({"file": str(path), "seconds": _since(began), "error": error.message})
        except Exception as error:  # noqa: BLE001 - the warm-up: a user's modifier may raise anything
            log.exception("warm-up failed", file=str(path))
            return _logged({"file": str(path), "seconds": _since(began), "error": f"{type(error).__name__}: {error}"})
        return _logged({"file": str(path), "seconds": _since(began)})


def split_kind(name: str) -> dict[str, str]:
    """Split `vae/x.safetensors` into kind and name; without a known folder the name is a checkpoint's."""
    head, slash, tail = name.partition("/")
    return {"kind": head, "name": tail} if slash and head in KINDS else {"kind": "checkpoints", "name": name}


def _logged(entry: dict[str, object]) -> dict[str, object]:
    if "error" in entry:
        log.error("warm-up failed", **entry)
    else:
        log.info("warmed up", **entry)
    return entry


def _since(began: float) -> float:
    return round(time.monotonic() - began, 3)
