"""Choice of how many runs sample at a time: as many as fill the widest batch that is faster a row."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch

from darkroom.engine.cancel import CancelToken
from darkroom.engine.diffusion.options import Network, OptionDict, Options
from darkroom.engine.tuning.batching.batcher import StepBatcher
from darkroom.engine.tuning.batching.evaluation import Evaluation
from darkroom.engine.tuning.batching.kinds import kind_of
from darkroom.engine.tuning.batching.widths import Widths


class WidthProbe:
    """Implementation of `darkroom.engine.diffusion.shared_steps.StepSharing` that measures widths and shares nothing.

    Of a sampling run it measures the first evaluation. `num_runs` is None before, and 1 where sharing is no faster.
    """

    def __init__(self, batcher: StepBatcher) -> None:
        self._batcher = batcher
        self.num_runs: int | None = None

    @property
    def has_company(self) -> bool:
        return True  # the evaluation has to come here

    def sampling(self, patcher: Network, options: Options) -> AbstractContextManager[None]:
        return nullcontext()

    def evaluate(
        self, model: Network, x: torch.Tensor, sigmas: torch.Tensor, arguments: OptionDict, options: Options
    ) -> torch.Tensor | None:
        """Measure, and leave the evaluation to the caller."""
        if self.num_runs is None:
            kind = kind_of(model, x, arguments, options)
            evaluation = Evaluation(kind, model.current_patcher, model, x, sigmas, arguments)
            widths = Widths() if kind is None else self._batcher.widths_for(evaluation, CancelToken())
            self.num_runs = runs_that_fill(widths, evaluation.num_rows)
        return None

    def beside(self, work: Callable[[], torch.Tensor]) -> torch.Tensor:
        return work()


def runs_that_fill(widths: Widths, own_rows: int) -> int:
    """Return the number of evaluations of `own_rows` rows that fit into the widest batch, at least one."""
    return max(1, widths.most // own_rows)
