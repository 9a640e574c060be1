"""The point at which evaluations of a network by different runs may become one batch.

Sampling hands each evaluation of a network to the sharing of its run, if any. Without one it is made at once, by
itself. `engine/tuning/batching` implements it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

import torch

from darkroom.engine.diffusion.options import Network, OptionDict, Options


class StepSharing(Protocol):
    """Sharing of evaluations by the runs of one engine."""

    def sampling(self, patcher: Network, options: Options) -> AbstractContextManager[None]:
        """Prepare for a sampling run of a MODEL: wait until no other one uses its network in another way."""
        ...

    def evaluate(
        self, model: Network, x: torch.Tensor, sigmas: torch.Tensor, arguments: OptionDict, options: Options
    ) -> torch.Tensor | None:
        """Return the denoised latent of `x` [B, C, h, w] at `sigmas` [B]; None where the caller is to evaluate.

        `arguments` are those of `model.apply_model`, `options` the model options of the sampling run.
        """
        ...

    @property
    def has_company(self) -> bool:
        """Return True while other runs are in progress, with which evaluations may be shared."""
        ...

    def beside(self, work: Callable[[], torch.Tensor]) -> torch.Tensor:
        """Return the result of `work`, whose models are on their device as a whole; other runs may go on meanwhile."""
        ...
