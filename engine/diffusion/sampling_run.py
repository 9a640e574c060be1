"""The run of a prompt, as far as sampling and decoding depend on it.

A `Guider` finds the run once, where sampling begins, and passes it on in the model options, which every sampler and
guider hands from call to call. Functions in ComfyUI's form that come before (the ones custom nodes may replace, names
of samplers and schedules, the decoding of a VAE) have no parameter for it: they ask for the run of the current work.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch

from darkroom.engine.cancel import Work, current_work
from darkroom.engine.diffusion.options import SAMPLING_RUN, Network, OptionDict, Options
from darkroom.engine.diffusion.recorded_steps import EvaluationRecord, RunRecording, SamplingStart
from darkroom.engine.diffusion.shared_steps import StepSharing
from darkroom.engine.diffusion.tuned import RunTuning

T = TypeVar("T")
H = TypeVar("H", bound=Hashable)


@dataclass(frozen=True, eq=False)
class SamplingRun(Work):
    """A run of a prompt, as far as sampling and decoding depend on it. By default nothing does: the plain path."""

    call: object | None = None
    """The running call of a node (`engine/nodes/running_call.py::RunningCall`)."""
    choices: object | None = None
    """Samplers and schedules to choose from (`engine/diffusion/choices.py::Choices`); None for the built-in ones."""
    replacements: Mapping[Hashable, object] = field(default_factory=dict)
    """Replacements of our functions and classes by custom nodes, by those."""
    tuning: RunTuning | None = None
    """Strategies that the run may use."""
    sharing: StepSharing | None = None
    """Sharing of evaluations with other runs; None where there are no others."""
    recording: RunRecording | None = None
    """Records of the run's sampling; None for a run without a checkpoint."""
    record: EvaluationRecord | None = None
    """The record of the sampling in progress. None also within an evaluation, which is recorded as a whole."""

    def __deepcopy__(self, memo: object) -> SamplingRun:
        """Return the run itself: there is one, also where custom nodes copy the options that it is in."""
        return self

    def replacement_of(self, original: H) -> H:
        """Return the replacement of a function or class of ours, or the original."""
        found: H = self.replacements.get(original, original)  # type: ignore[assignment]
        return found

    # --- tuning ---

    def attempt(self, patcher: Network, work: Callable[[SamplingRun], T]) -> T:
        """Return the result of `work`, which is called again, with a plain run, where a strategy fails it."""
        if self.tuning is None:
            return work(self)
        return self.tuning.attempt(patcher, lambda tuning: work(replace(self, tuning=tuning)))

    def attempt_stream(self, patcher: Network, make: Callable[[SamplingRun], Generator[T, None, None]]) -> Iterator[T]:
        """Iterate over the iterator of `make`; it is made again, with a plain run, where a strategy fails it."""
        if self.tuning is None:
            return make(self)
        return self.tuning.attempt_stream(patcher, lambda tuning: make(replace(self, tuning=tuning)))

    def options_for(self, patcher: Network, options: OptionDict) -> OptionDict:
        """Return the model options to sample with: with those of strategies, and this run."""
        tuned = options if self.tuning is None else self.tuning.sampling_options(patcher, options)
        return self.in_options(tuned)

    def in_options(self, options: Options) -> OptionDict:
        """Return model options by which evaluations find this run."""
        return {**options, SAMPLING_RUN: self}

    def tuned_network(self, patcher: Network, network: Network, options: Options) -> AbstractContextManager[None]:
        """Return the context in which strategies have changed the network. For one that is on its device."""
        return nullcontext() if self.tuning is None else self.tuning.sampling(patcher, network, options)

    def tuned_decoder(self, patcher: Network, network: torch.nn.Module) -> AbstractContextManager[None]:
        """Return the context in which strategies have changed a VAE. For one that is on its device."""
        return nullcontext() if self.tuning is None else self.tuning.decoding(patcher, network)

    # --- other runs ---

    @property
    def has_company(self) -> bool:
        """True where there are other runs to share evaluations with."""
        return self.sharing is not None and self.sharing.has_company

    def shared_sampling(self, patcher: Network, options: Options) -> AbstractContextManager[None]:
        """Return the context in which a MODEL samples, before its weights are brought to their device."""
        return nullcontext() if self.sharing is None else self.sharing.sampling(patcher, options)

    def evaluated(
        self,
        model: Network,
        x: torch.Tensor,
        sigmas: torch.Tensor,
        arguments: OptionDict,
        options: Options,
        evaluate: Callable[[], Any],
    ) -> torch.Tensor:
        """Return the denoised latent, in a batch with other runs' or by `evaluate`."""
        found = None if self.sharing is None else self.sharing.evaluate(model, x, sigmas, arguments, options)
        if found is None:
            made: torch.Tensor = evaluate()
            return made
        return found

    def beside_others(self, work: Callable[[], torch.Tensor]) -> torch.Tensor:
        """Return the result of `work`, while which other runs sample where sharing can let them.

        For work whose models are on their device as a whole.
        """
        return work() if self.sharing is None else self.sharing.beside(work)

    # --- the record ---

    @contextmanager
    def recorded(self, start: Callable[[], SamplingStart]) -> Iterator[SamplingRun]:
        """Yield the run to sample with. `start` is called only where runs are recorded."""
        if self.recording is None:
            yield self
            return
        with self.recording.sampling(start()) as record:
            yield replace(self, record=record)

    def answers(
        self,
        sides: Sequence[object],
        x: torch.Tensor,
        options: Options,
        compute: Callable[[Options], list[torch.Tensor]],
    ) -> list[torch.Tensor]:
        """Return the answers of an evaluation, from the record or by `compute` with the model options.

        What an evaluation evaluates itself is a part of it: the run in the options that `compute` gets has no record.
        """
        if self.record is None:
            return compute(options)
        inner = replace(self, record=None).in_options(options)
        return self.record.evaluate(sides, x, lambda: compute(inner))


PLAIN = SamplingRun()


def sampling_run() -> SamplingRun:
    """Return the run of the current work; outside of any, one on which nothing depends."""
    work = current_work()
    return work if isinstance(work, SamplingRun) else PLAIN


def run_in(options: Options) -> SamplingRun:
    """Return the run that model options carry; without one, one on which nothing depends."""
    found: SamplingRun = options.get(SAMPLING_RUN, PLAIN)
    return found
