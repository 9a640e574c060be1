"""The point at which tuning enters a sampling run.

Sampling asks the tuning of its run, if any, for further options and for changes of the network while it samples.
Without one both are empty: the plain path. `engine/tuning` implements it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar

from darkroom.engine.diffusion.options import Network, OptionDict, Options

T = TypeVar("T")
Frames = Generator[T, None, None]


class RunTuning(Protocol):
    """Tuning of one run of a prompt."""

    def attempt(self, patcher: Network, work: Callable[[RunTuning], T]) -> T:
        """Return the result of `work`, which samples or decodes with the model of `patcher` and the tuning it gets.

        Where a strategy fails it, `work` is called once more, with a tuning that takes the plain path.
        """
        ...

    def attempt_stream(self, patcher: Network, make: Callable[[RunTuning], Frames[T]]) -> Iterator[T]:
        """Iterate over the iterator of `make`, which decodes as it is taken, with the tuning it gets.

        Where a strategy fails it, another one is made, with a tuning that takes the plain path; what came already is
        not yielded again.
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
