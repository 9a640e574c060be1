"""Sharing of evaluations as one run of a prompt takes part in it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager

import torch

from darkroom.engine.cancel import CancelToken
from darkroom.engine.diffusion.options import Network, OptionDict, Options
from darkroom.engine.tuning.batching.batcher import StepBatcher
from darkroom.engine.tuning.batching.evaluation import Evaluation
from darkroom.engine.tuning.batching.kinds import kind_of
from darkroom.engine.tuning.quality import Quality

SHARED_STEPS = "shared_steps"  # among the strategies that a run used


class RunSharing:
    """Implementation of `darkroom.engine.diffusion.shared_steps.StepSharing` for one run.

    Its evaluations join those of other runs that use the same network in the same way. A run keeps the turn while it
    samples where it cannot share: with the quality `exact`, parts of the network replaced, hooks, or within sampling.
    `note` is called with the names of strategies that were used, and their error: its steps were made in batches.
    """

    def __init__(
        self, batcher: StepBatcher, quality: Quality, cancel: CancelToken, note: Callable[[Sequence[str], float], None]
    ) -> None:
        self._batcher = batcher
        self._note = note
        self._quality = quality
        self._cancel = cancel
        self._ways: list[Hashable | None] = []  # of the sampling in progress, the innermost last; None: by itself
        self._parked: Evaluation | None = None
        cancel.when_cancelled(self._on_cancel)

    def _on_cancel(self) -> None:
        """Let the run go on, which waits for a network or an evaluation. Called on the thread that cancels."""
        parked, turns = self._parked, self._batcher.turns
        if parked is not None:
            turns.take_back(parked)
        turns.nudge()

    @contextmanager
    def sampling(self, patcher: Network, options: Options) -> Iterator[None]:
        """Sample while the context is open, once no other run uses the network in another way."""
        if not self._batcher.turns.has_turn:  # a thread of a node's own, which cannot give away what it has not
            yield
            return
        if self._ways:
            self._ways.append(None)  # the outer one keeps its network; here nothing gives the turn away
            try:
                yield
            finally:
                self._ways.pop()
            return
        network_id = network_id_of(patcher)
        way = self._way(patcher, options)
        try:
            with self._batcher.using(network_id, object() if way is None else way, self._cancel):
                self._ways.append(None if way is None else (network_id, way))
                try:
                    yield
                finally:
                    self._ways.pop()
        finally:
            if not self._batcher.is_used(network_id):  # else the last run may leave that of one which ended before
                patcher.model.current_patcher = None

    def _way(self, patcher: Network, options: Options) -> Hashable | None:
        """Return the key of a MODEL's use of its network, in which runs may differ; None where it cannot share."""
        is_plain = (
            self._quality is not Quality.EXACT
            and not patcher.object_patches
            and not patcher.is_injected
            and not patcher.injections
            and not patcher.additional_models
            and options.get("registered_hooks") is None
        )
        return (patcher.patches_uuid if patcher.patches else None, str(self._quality)) if is_plain else None

    def evaluate(
        self, model: Network, x: torch.Tensor, sigmas: torch.Tensor, arguments: OptionDict, options: Options
    ) -> torch.Tensor | None:
        """Return the denoised latent, made with others' if some wait; None for one that the caller makes by itself."""
        way = self._ways[-1] if self._ways and self._batcher.turns.has_turn else None
        kind = None if way is None else kind_of(model, x, arguments, options)
        if kind is None:
            return None
        patcher = model.current_patcher
        measured_as = (network_id_of(patcher), str(self._quality), kind)  # patches change neither times nor kernels
        tolerance = self._quality.tolerance_of_company
        evaluation = Evaluation((way, kind), patcher, model, x, sigmas, arguments, measured_as, tolerance)
        if not self.has_company and not self._batcher.are_measured(evaluation):
            return None  # who is alone does not wait for what serves the company of others
        widths = self._batcher.widths_for(evaluation, self._cancel)
        if evaluation.num_rows > widths.most:
            return None
        self._note((SHARED_STEPS,), widths.error)
        self._parked = evaluation
        try:
            self._batcher.turns.park(evaluation, self._batcher.evaluate)
        finally:
            self._parked = None
        model.current_patcher = patcher  # that of the run whose turn it was
        if evaluation.error is not None:
            raise evaluation.error
        self._cancel.check()
        assert evaluation.result is not None, "an evaluation that is over has a result or an error"
        return evaluation.result

    @property
    def has_company(self) -> bool:
        """Return True while other runs are in progress and this one's sampling may share evaluations with them."""
        return self._batcher.has_company and bool(self._ways) and self._ways[-1] is not None

    def beside(self, work: Callable[[], torch.Tensor]) -> torch.Tensor:
        """Return the result of `work`; where the device has streams, other runs have the turn meanwhile."""
        side, turns = self._batcher.side, self._batcher.turns
        if side is None or not turns.has_turn or turns.is_alone:
            return work()
        return side.run(turns, work)


def network_id_of(patcher: Network) -> Hashable:
    """Return the identity of a network among all that are loaded."""
    weights = patcher.weights
    return getattr(weights, "entry_id", None) or id(weights)
