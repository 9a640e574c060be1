"""Timed run of one prompt of the benchmark in the engine."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Mapping

from darkroom.worker.engines.client.client import EngineClient
from darkroom.worker.engines.client.files import LocalFolders
from darkroom.worker.json.values import JsonObject, object_at
from darkroom.worker.qualification.verdict import RunTiming

TIMEOUT_SECONDS = 3600.0


class StepWatch:
    """Times from an engine's messages: duration of samplers, number of steps, end of the first step.

    A node is a sampler when its class is one; steps are those it reports.
    """

    def __init__(self, prompt: JsonObject, clock: Callable[[], float] = time.monotonic) -> None:
        self._samplers = {key for key, node in prompt.items() if "Sampler" in str(object_at(node).get("class_type"))}
        self._clock = clock
        self._began = clock()
        self._sampler_began: float | None = None
        self._steps_of_node = 0
        self.sampling_seconds = 0.0
        self.num_steps = 0
        self.num_executed = 0
        self.first_step_seconds: float | None = None
        self._has_begun = False

    def on_message(self, kind: str, data: Mapping[str, object]) -> None:
        self._has_begun = self._has_begun or kind == "execution_start"
        if kind == "executing":
            self._end_sampler()
            node = data.get("node")
            if node is not None:
                self.num_executed += 1
            if node in self._samplers:
                self._sampler_began = self._clock()
        elif kind == "progress" and data.get("node") in self._samplers and self._sampler_began is not None:
            value = data.get("value")
            self._steps_of_node = max(self._steps_of_node, int(value) if isinstance(value, int | float) else 0)
            if self.first_step_seconds is None and self._steps_of_node:
                self.first_step_seconds = self._clock() - self._began

    def _end_sampler(self) -> None:
        if self._sampler_began is not None:
            self.sampling_seconds += self._clock() - self._sampler_began
            self.num_steps += self._steps_of_node
            self._sampler_began, self._steps_of_node = None, 0

    def timing(self) -> RunTiming:
        self._end_sampler()
        return RunTiming(
            total_seconds=max(self._clock() - self._began, 1e-6),
            sampling_seconds=self.sampling_seconds or None,
            num_steps=self.num_steps,
            first_step_seconds=self.first_step_seconds,
            num_executed=self.num_executed,
            is_from_cache=self._has_begun and self.num_executed == 0,
        )


async def run_timed(engine: EngineClient, prompt: JsonObject) -> RunTiming:
    """Run a prompt and return its times. Raises the run's error unless it succeeds.

    Its files are removed if they are on this machine.
    """
    watch = StepWatch(prompt)
    name = f"benchmark-{uuid.uuid4()}"
    outcome = await engine.runner.run(prompt, name, watch.on_message, timeout_seconds=TIMEOUT_SECONDS, is_own=True)
    timing = watch.timing()
    await asyncio.to_thread(remove_outputs, outcome.outputs, engine.folders)
    if outcome.error is not None:
        raise outcome.error
    return timing


def remove_outputs(outputs: Mapping[str, JsonObject], folders: LocalFolders | None) -> None:
    """Remove the files that a run saved: no client asked for these images."""
    if folders is None:
        return
    for shown in outputs.values():
        for item in (item for items in shown.values() if isinstance(items, list) for item in items):
            folder = folders.of(str(item.get("type"))) if isinstance(item, Mapping) else None
            if folder is None or item.get("type") == "input":
                continue
            path = (folder / str(item.get("subfolder") or "") / str(item.get("filename"))).resolve()
            if path.is_relative_to(folder.resolve()) and path.is_file():
                path.unlink(missing_ok=True)
