"""Runs as sampling takes them: with tables, tuning, sharing of steps, and a record."""

from __future__ import annotations

from collections.abc import Callable

import torch

from darkroom.contract.wire import CHECKPOINT_KEY
from darkroom.engine.cancel import CancelToken
from darkroom.engine.diffusion.sampling_run import SamplingRun
from darkroom.engine.diffusion.sampling_tables import SamplingTables
from darkroom.engine.events import Event, RunFailed, RunInterrupted, RunSaving, RunSucceeded, TuningUsed
from darkroom.engine.nodes.running_call import running_context
from darkroom.engine.runtime.request import RunRequest
from darkroom.engine.runtime.resume.recorder import RunRecorder, folder_of_key
from darkroom.engine.settings import EngineSettings
from darkroom.engine.tuning.batching.batcher import StepBatcher
from darkroom.engine.tuning.batching.run_sharing import RunSharing
from darkroom.engine.tuning.quality import Quality
from darkroom.engine.tuning.run import Usage
from darkroom.engine.tuning.tuner import Tuner


class SamplingRuns:
    """Maker of the runs of this engine, as sampling takes them."""

    def __init__(
        self,
        settings: EngineSettings,
        device: torch.device,
        tables: SamplingTables,
        tuner: Tuner,
        batcher: StepBatcher | None,
    ) -> None:
        self._checkpoints = settings.checkpoint_directory
        self._checkpoint_seconds = settings.checkpoint_seconds
        self._device = device
        self._tables = tables
        self._tuner = tuner
        self._batcher = batcher

    @property
    def depends_on_quality(self) -> bool:
        """True where runs of other qualities may have other results."""
        return bool(self._tuner.outcomes or self._batcher)

    def make(self, request: RunRequest, quality: Quality, cancel: CancelToken) -> tuple[SamplingRun, Usage]:
        """Return a run as sampling takes it, and the record of the strategies that it uses."""
        batcher = self._batcher
        tuned = self._tuner.tuned_run(quality, may_share=batcher is not None)
        run = SamplingRun(
            tuning=tuned if self._tuner.is_on else None,
            sharing=None if batcher is None else RunSharing(batcher, quality, cancel, tuned.usage.add),
            recording=self._recorder(request),
        )
        return self._tables.of_run(run), tuned.usage

    def _recorder(self, request: RunRequest) -> RunRecorder | None:
        """Return the recorder of a prompt's sampling, None for a prompt without a checkpoint."""
        folder = folder_of_key(self._checkpoints, request.extra_data.get(CHECKPOINT_KEY))
        if folder is None:
            return None
        part = f"{request.part} " if request.part else ""  # the same node samples in every part
        return RunRecorder(folder, self._checkpoint_seconds, self._device, lambda: part + _key_of_call())


def _key_of_call() -> str:
    """Return the node and the element of its lists that the running call is for."""
    context = running_context()
    return "" if context is None else f"{context.node_id}[{context.list_index}]"


def reporting_usage(prompt_id: str, usage: Usage, on_event: Callable[[Event], None]) -> Callable[[Event], None]:
    """Return a receiver of events that reports the strategies used before the run's nodes are over."""
    is_reported = False

    def receive(event: Event) -> None:
        nonlocal is_reported
        if not is_reported and isinstance(event, (RunSaving, RunSucceeded, RunInterrupted, RunFailed)):
            is_reported = True
            on_event(TuningUsed(prompt_id, str(usage.quality), tuple(usage.used), dict(usage.unused), usage.error))
        on_event(event)

    return receive
