"""Runs of prompts: their order, their threads and turns, cancellation, and their ends."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import cast, get_args

import torch

from darkroom.contract.wire import CHECKPOINT_KEY, PREVIEW_METHOD_KEY, QUALITY_KEY
from darkroom.engine.cancel import CancelToken
from darkroom.engine.events import Event
from darkroom.engine.housekeeping import Housekeeping
from darkroom.engine.memory.device import Device
from darkroom.engine.models.files.prefetch import FilePrefetch
from darkroom.engine.previews import Previews
from darkroom.engine.runtime.executor import run_nodes
from darkroom.engine.runtime.idle_timer import IdleTimer
from darkroom.engine.runtime.request import RunRequest, RunResult
from darkroom.engine.runtime.resume.recorder import folder_of_key
from darkroom.engine.runtime.run_ends import RunEnds
from darkroom.engine.runtime.run_register import RunRegister
from darkroom.engine.runtime.run_services import RunServices
from darkroom.engine.runtime.run_slots import RunSlots
from darkroom.engine.runtime.run_threads import RunThreads
from darkroom.engine.runtime.running_part import running_part
from darkroom.engine.runtime.signatures import RunSignatures
from darkroom.engine.runtime.turns import TurnSelector
from darkroom.engine.sampling_runs import SamplingRuns, reporting_usage
from darkroom.engine.settings import EngineSettings, PreviewMethod
from darkroom.engine.tuning.batching.batcher import BatchFigures, StepBatcher
from darkroom.engine.tuning.quality import DEFAULT, Quality, read_quality

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Lanes:
    """Threads, slots and ends of runs.

    `batcher` is None where one runs at a time.
    """

    threads: RunThreads
    slots: RunSlots
    ends: RunEnds
    signatures: RunSignatures
    batcher: StepBatcher | None


@dataclass(frozen=True, slots=True)
class _Run:
    number: int
    request: RunRequest
    cancel: CancelToken
    on_event: Callable[[Event], None]


class Runs:
    """Submitted prompts, from `submit` to their results."""

    def __init__(
        self,
        settings: EngineSettings,
        lanes: Lanes,
        services: RunServices,
        sampling: SamplingRuns,
        housekeeping: Housekeeping,
        previews: Previews,
        device: Device,
        prefetch: FilePrefetch,
    ) -> None:
        self.threads = lanes.threads
        self.slots = lanes.slots
        self.signatures = lanes.signatures
        self.batcher = lanes.batcher
        self._ends = lanes.ends
        self._services = services
        self._sampling = sampling
        self._housekeeping = housekeeping
        self._previews = previews
        self._device = device
        self.prefetch = prefetch
        self._register = RunRegister()
        self._idle = IdleTimer(settings.memory.idle_unload_seconds, self._unload_idle)

    def submit(self, request: RunRequest, on_event: Callable[[Event], None]) -> Future[RunResult]:
        """Run a checked prompt after those submitted before; see `Engine.submit`."""
        read_quality(request.extra_data.get(QUALITY_KEY))
        folder_of_key(None, request.extra_data.get(CHECKPOINT_KEY))
        result: Future[RunResult] = Future()
        result.set_running_or_notify_cancel()  # `interrupt` is the way to stop it
        self._idle.stop()
        number, cancel = self._register.add(request.prompt_id)
        run = _Run(number, request, cancel, on_event)
        try:
            self.threads.submit_run(lambda slot: self._run(slot, run, result), self.slots.of(request.continues))
        except RuntimeError:
            self._register.remove(number)
            raise
        return result

    def interrupt(self, prompt_id: str | None = None) -> bool:
        """Stop the running prompts, or the one with that id. Return True if there was one."""
        return self._register.interrupt(prompt_id)

    @property
    def prompt_with_turn(self) -> str | None:
        """The prompt that computes now, where several run at a time; None while none does. For any thread."""
        return None if self.batcher is None else self.slots.prompt_of(self.batcher.turns.holder)

    @property
    def batch_figures(self) -> BatchFigures:
        """Counts of the evaluations that runs have shared; all 0 where one runs at a time."""
        return BatchFigures() if self.batcher is None else self.batcher.figures

    def come_to_rest(self) -> None:
        """Wait for the files of the last run, and end what works in the background. For a thread of runs."""
        self._ends.wait()
        self.prefetch.end()
        self._idle.stop()

    def wait_idle(self) -> None:
        """Begin to wait for the time after which models are unloaded because nothing runs."""
        self._idle.start()

    def stop(self) -> None:
        """Interrupt the running prompts, end the queued ones, and wait for that. Nothing is accepted from then on."""
        self._register.cancel_all()
        self.threads.close()
        if self.batcher is not None:
            self.batcher.close()

    def close(self) -> None:
        """End what works for runs in the background, after `stop`, and wait for their files."""
        self._idle.stop()
        self.prefetch.end()
        self._ends.close()

    def _run(self, slot: int, run: _Run, result: Future[RunResult]) -> None:
        """Run a prompt on the thread of that slot, in turns with other runs where there may be some."""
        self.slots.enter(slot, run.request.prompt_id)
        with nullcontext() if self.batcher is None else self.batcher.turns.run():
            try:
                with self._device.computing():  # also while weights leave the device at the end
                    end = self._run_nodes(slot, run)
            except BaseException as error:  # noqa: BLE001 - the end of a run: whoever waits for it gets its error
                log.exception("a run did not end properly")
                end = partial(_raise, error)
            self._ends.settle(result, end)

    def _run_nodes(self, slot: int, run: _Run) -> Callable[[], RunResult]:
        """Run the nodes and return a function that returns the result or raises an error that is no node's failure."""
        request = run.request
        with self._begun(run.number):
            try:
                self._housekeeping.forget_changed_files()
                self.prefetch.begin_prompt(running_part(request, self._services.find_class))
                asked = request.extra_data.get(QUALITY_KEY)
                quality = read_quality(asked)
                sampling, usage = self._sampling.make(request, quality, run.cancel)
                with (
                    self._housekeeping.caches.in_use(slot),
                    torch.inference_mode(),
                    sampling.current(),
                    asyncio.Runner(loop_factory=self._loop_factory()) as runner,
                ):
                    on_event = run.on_event
                    if asked is not None:
                        on_event = reporting_usage(request.prompt_id, usage, on_event)
                    services = self._services_for(slot, quality, request.extra_data.get(PREVIEW_METHOD_KEY))
                    return runner.run(run_nodes(request, services, run.cancel, on_event))
            except BaseException as error:  # noqa: BLE001 - the run: whoever waits for it gets its error
                return partial(_raise, error)

    @contextlib.contextmanager
    def _begun(self, number: int) -> Iterator[None]:
        """Count a run as running while the context is open, and clear up behind it."""
        self._register.begin(number)
        try:
            yield
        finally:
            self._register.remove(number)
            self._housekeeping.after_run()
            self._idle.start()

    def _services_for(self, slot: int, quality: Quality, preview_method: object) -> RunServices:
        """Return the services of a run in that slot, with its preview method.

        Its results are not those of other qualities.
        """
        services, caches = self._services, self._housekeeping.caches
        if slot:
            services = replace(services, results=caches.results(slot), instances=caches.instances(slot))
        if preview_method in get_args(PreviewMethod):
            encode = partial(self._previews.encode, method=cast(PreviewMethod, preview_method))
            services = replace(services, make_preview=encode)
        if quality is DEFAULT or not self._sampling.depends_on_quality:
            return services
        return replace(services, signatures=partial(self.signatures.make, quality=str(quality)))

    def _loop_factory(self) -> Callable[[], asyncio.AbstractEventLoop] | None:
        """Return the maker of a run's event loop, None for asyncio's own."""
        if self.batcher is None:
            return None
        turns = self.batcher.turns
        return lambda: asyncio.SelectorEventLoop(TurnSelector(turns))

    def _unload_idle(self) -> None:
        """Unload models after the idle time; called by the timer on a thread of its own."""
        with contextlib.suppress(RuntimeError):  # the engine is being closed
            self.threads.submit(lambda: self._housekeeping.unload_idle() if self._register.is_empty else None)


def _raise(error: BaseException) -> RunResult:
    raise error
