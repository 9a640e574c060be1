"""Tuning of an engine to its machine: strategies are measured with a model of its own, and the outcomes used."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import torch

from darkroom.engine.diffusion.sampling_run import sampling_run
from darkroom.engine.diffusion.sampling_tables import SamplingTables
from darkroom.engine.families import registry
from darkroom.engine.memory import device as devices
from darkroom.engine.memory.device import translate_device_error
from darkroom.engine.memory.model_memory import ModelMemory
from darkroom.engine.models.store import ModelStore
from darkroom.engine.runtime.run_threads import RunThreads
from darkroom.engine.settings import EngineSettings
from darkroom.engine.tuning.batching.batcher import StepBatcher
from darkroom.engine.tuning.batching.choose_runs import WidthProbe
from darkroom.engine.tuning.outcome import Outcome, read_outcome
from darkroom.engine.tuning.quality import Quality
from darkroom.engine.tuning.request import TuningRequest, read_tuning_request
from darkroom.engine.tuning.strategy import MachineFacts
from darkroom.engine.tuning.tuner import Tuner
from darkroom.engine.tuning.workload import Trial, TrialSize
from darkroom.host.cores import usable_cores

log = logging.getLogger(__name__)


class MachineTuning:
    """Measurement of the strategies on this machine, and of how many runs at a time are fastest."""

    def __init__(
        self,
        settings: EngineSettings,
        tuner: Tuner,
        threads: RunThreads,
        models: ModelStore,
        memory: ModelMemory,
        sampling: SamplingTables,
        batcher: StepBatcher | None,
    ) -> None:
        self._max_runs = settings.max_concurrent_runs
        self._chooses_runs = settings.chooses_runs
        self._tuner = tuner
        self._threads = threads
        self._models = models
        self._memory = memory
        self._sampling = sampling
        self._batcher = batcher

    @property
    def runs_at_once(self) -> int:
        """Number of prompts that may be in progress at a time: the setting, or what was measured last for `auto`."""
        if not self._chooses_runs:
            return self._max_runs
        measured = [outcome.concurrent_runs for outcome in self._tuner.outcomes.values() if outcome.concurrent_runs]
        return min(self._max_runs, measured[-1]) if measured else self._max_runs

    def adopt(self, body: Mapping[str, Any]) -> None:
        """Use an outcome that was measured before on a machine like this one.

        Raises ValueError for what is none, and for one that does not choose the number of runs where that is asked for.
        """
        outcome = read_outcome(body)
        if self._chooses_runs and outcome.concurrent_runs is None:
            raise ValueError("concurrent_runs: not measured; expected a number, since the engine is to choose it")
        self._tuner.adopt(outcome)

    def measure(self, body: Mapping[str, Any]) -> Future[dict[str, Any]]:
        """Measure the strategies, after the prompts submitted so far, and use the choice from then on.

        `body` has the fields of `TuningRequest`; ValueError names one that is wrong. The result is the outcome in its
        JSON form, or raises ValueError for an unknown model, `BadModelFile`, `OutOfMemory` and `DeviceLost`.
        """
        request = read_tuning_request(body)
        return self._threads.submit(lambda: self._measure(request).as_json())

    def _measure(self, request: TuningRequest) -> Outcome:
        device = self._memory.resolved.device
        identity = devices.identity(device)
        machine = MachineFacts(
            torch.device(device).type, identity.name, devices.capability(device), usable_cores(), request.is_full_size
        )
        versions = {"device": identity.name, "torch": identity.torch, "cuda": identity.cuda or "",
                    "precision": self._memory.resolved.unet_dtype}  # fmt: skip
        size = TrialSize(
            request.width_px, request.height_px, request.num_steps, request.cfg, request.sampler_name,
            request.scheduler, request.turns_seconds,
        )  # fmt: skip
        with (
            torch.inference_mode(), self._memory.device.computing(), self._sampling.active(), translate_device_error()
        ):  # fmt: skip
            trial = Trial(self._values(request), size, request.name, lambda: devices.wait_for(device))
            try:
                outcome = self._tuner.measure(trial, machine, versions, request.settle_seconds, request.budget_seconds)
                if self._chooses_runs:
                    outcome = replace(outcome, concurrent_runs=self._measure_runs(trial))
                    self._tuner.adopt(outcome)
                return outcome
            finally:
                self._tuner.release()

    def _measure_runs(self, trial: Trial) -> int | None:
        """Return the number of concurrent runs that is fastest for the trial's image."""
        assert self._batcher is not None, "an engine that chooses its runs can have several"
        probe = WidthProbe(self._batcher)
        tuning = self._tuner.tuned_run(Quality.SAME, may_share=True) if self._tuner.is_on else None
        with replace(sampling_run(), tuning=tuning, sharing=probe).current():
            trial.draw()
        log.info("runs at a time chosen: runs=%s", probe.num_runs)
        return probe.num_runs

    def _values(self, request: TuningRequest) -> Sequence[Any]:
        """Return MODEL, CLIP and VAE to measure with. Raises ValueError for a family or scale that does not exist."""
        if request.checkpoint is not None:
            return self._models.checkpoint(request.checkpoint)
        name = request.family or registry.default_family().name
        if name not in registry.family_names() or request.scale not in registry.family_named(name).scales:
            raise ValueError(f"family: unknown family or scale; got {name!r} with {request.scale!r}")
        return self._models.random_checkpoint(name, request.scale)
