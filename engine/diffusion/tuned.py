"""The point at which tuning enters a sampling run.

Sampling asks the tuning that is current, if any, for further options of a run and for changes of the network while it
samples. Without one both are empty: the plain path. `engine/tuning` implements it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Protocol, TypeVar

import torch

from engine.diffusion.options import Network, OptionDict, Options

T = TypeVar("T")
Frames = Generator[T, None, None]


class RunTuning(Protocol):
    """Tuning of one run of a prompt."""

    def attempt(self, patcher: Network, work: Callable[[], T]) -> T:
        """Return the result of `work`, which samples or decodes with the model of `patcher`.

        Where a strategy fails it, `work` is called once more and takes the plain path.
        """
        ...

    def attempt_stream(self, patcher: Network, make: Callable[[], Frames[T]]) -> Iterator[T]:
        """Yield what the iterator of `make` yields, which decodes as it is taken.

        Where a strategy fails it, another one is made, which takes the plain path; what came already is not yielded
        again.
        """
        ...

    def sampling_options(self, patcher: Network, options: OptionDict) -> OptionDict:
        """Return the model options to sample with, which are `options` where nothing is added."""
        ...

    def sampling(self, patcher: Network, network: Network, options: Options) -> AbstractContextManager[None]:
        """Change the network, which is on its device, while the context is open."""
        ...

    def decoding(self, patcher: Network, network: Network) -> AbstractContextManager[None]:
        """Change a VAE, which is on its device, while the context is open."""
        ...


_CURRENT: ContextVar[RunTuning | None] = ContextVar("run_tuning", default=None)


@contextmanager
def tuning_active(tuning: RunTuning | None) -> Iterator[None]:
    """Sample with this tuning while the context is open, in its thread and in the tasks it starts."""
    token = _CURRENT.set(tuning)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def tuned_attempt(patcher: Network, work: Callable[[], T]) -> T:
    """Return the result of `work`, which is called twice where a strategy of the current tuning fails it."""
    current = _CURRENT.get()
    return work() if current is None else current.attempt(patcher, work)


def tuned_stream(patcher: Network, make: Callable[[], Frames[T]]) -> Iterator[T]:
    """Yield what the iterator of `make` yields, which is made twice where a strategy of the current tuning fails it."""
    current = _CURRENT.get()
    return make() if current is None else current.attempt_stream(patcher, make)


def tuned_options(patcher: Network, options: OptionDict) -> OptionDict:
    """Return the model options of a sampling run with those of the current tuning."""
    current = _CURRENT.get()
    return options if current is None else current.sampling_options(patcher, options)


def tuned_network(patcher: Network, network: Network, options: Options) -> AbstractContextManager[None]:
    """Return the context in which the current tuning has changed the network. For one that is on its device."""
    current = _CURRENT.get()
    return nullcontext() if current is None else current.sampling(patcher, network, options)


def tuned_decoder(patcher: Network, network: torch.nn.Module) -> AbstractContextManager[None]:
    """Return the context in which the current tuning has changed a VAE. For one that is on its device."""
    current = _CURRENT.get()
    return nullcontext() if current is None else current.decoding(patcher, network)
