"""The point at which evaluations of a network by different runs may become one batch.

Sampling hands each evaluation of a network to the sharing that is current, if any. Without one it is made at once, by
itself. `engine/tuning/batching` implements it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any, Protocol

import torch

from engine.diffusion.options import Network, OptionDict, Options


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


_CURRENT: ContextVar[StepSharing | None] = ContextVar("step_sharing", default=None)


@contextmanager
def sharing_active(sharing: StepSharing | None) -> Iterator[None]:
    """Share evaluations while the context is open, in its thread and in the tasks it starts."""
    token = _CURRENT.set(sharing)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def is_sharing() -> bool:
    """Return True where evaluations are handed to a sharing and there are other runs to share them with."""
    current = _CURRENT.get()
    return current is not None and current.has_company


def may_share() -> bool:
    """Return True where evaluations are handed to a sharing: other runs may be in progress now, or begin."""
    return _CURRENT.get() is not None


def shared_sampling(patcher: Network, options: Options) -> AbstractContextManager[None]:
    """Return the context in which a MODEL samples, before its weights are brought to their device."""
    current = _CURRENT.get()
    return nullcontext() if current is None else current.sampling(patcher, options)


def evaluated(
    model: Network,
    x: torch.Tensor,
    sigmas: torch.Tensor,
    arguments: OptionDict,
    options: Options,
    evaluate: Callable[[], Any],
) -> torch.Tensor:
    """Return the denoised latent, by the current sharing or by `evaluate`."""
    current = _CURRENT.get()
    found = None if current is None else current.evaluate(model, x, sigmas, arguments, options)
    if found is None:
        made: torch.Tensor = evaluate()
        return made
    return found


def computed_beside(work: Callable[[], torch.Tensor]) -> torch.Tensor:
    """Return the result of `work`, while which other runs sample where the current sharing can let them.

    For work whose models are on their device as a whole.
    """
    current = _CURRENT.get()
    return work() if current is None else current.beside(work)
