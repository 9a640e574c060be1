"""Tuning of one run of a prompt: which strategies it may use, and which it used."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from engine.diffusion.options import Network, OptionDict, Options
from engine.diffusion.wrappers import merge_options
from engine.tuning.networks_in_use import NetworksInUse
from engine.tuning.outcome import Choice
from engine.tuning.quality import Quality
from engine.tuning.strategy import SamplingUse, Strategy

log = logging.getLogger(__name__)

Chosen = Callable[[str], Choice]
"""Class name of a network -> the strategies to use for it."""


@dataclass(slots=True)
class Usage:
    """Strategies that a run used, in their order, and the reasons of those that it could not use.

    `error` is the largest measured error of those choices: relative L2 of latents against the plain path.
    """

    quality: Quality
    used: list[str] = field(default_factory=list)
    unused: dict[str, str] = field(default_factory=dict)
    error: float = 0.0

    def add(self, names: Sequence[str], error: float) -> None:
        self.used += [name for name in names if name not in self.used]
        self.error = max(self.error, error) if names else self.error

    def skip(self, name: str, reason: str) -> None:
        """Record why a chosen strategy was not used, and log it once per run."""
        if name not in self.unused:
            self.unused[name] = reason
            log.info("strategy not used: name=%s reason=%s", name, reason)


class TunedRun:
    """Implementation of `engine.diffusion.tuned.RunTuning` for one run."""

    def __init__(
        self, quality: Quality, strategies: dict[str, Strategy], chosen: Chosen, networks: NetworksInUse
    ) -> None:
        self.usage = Usage(quality)
        self._strategies = strategies
        self._chosen = chosen
        self._networks = networks

    def sampling_options(self, patcher: Network, options: OptionDict) -> OptionDict:
        """Return the model options with those that chosen strategies add."""
        use = SamplingUse(patcher, patcher.model, options)
        choice = self._choice(patcher.model)
        merged = options
        for strategy in self._fitting(use, choice, gives_options):
            added = strategy.options(use)
            if added:
                merged = merge_options(merged, added)
                self.usage.add([strategy.name], self._error([strategy.name], choice))
        return merged

    @contextmanager
    def sampling(self, patcher: Network, network: Network, options: Options) -> Iterator[None]:
        """Apply the chosen strategies to a network while the context is open."""
        use = SamplingUse(patcher, network, options)
        choice = self._choice(network)
        with self._networks.plain(use):
            own = self._fitting(use, choice, changes_denoiser)
        with self._networks.changed(use, own) as names:
            self.usage.add(names, self._error(names, choice))
            yield

    @contextmanager
    def decoding(self, patcher: Network, network: Network) -> Iterator[None]:
        """Apply the chosen strategies of VAEs to one while the context is open."""
        use = SamplingUse(patcher, network, {})
        choice = self._chosen("")
        with self._networks.plain(use):
            own = self._fitting(use, choice, changes_vae)
        with self._networks.changed(use, own) as names:
            self.usage.add(names, self._error(names, choice))
            yield

    def _error(self, names: Sequence[str], choice: Choice) -> float:
        """Return the choice's error, or more where one of these is used unmeasured, whose error is at most its own."""
        return max((choice.error, *(self._strategies[name].certain_error for name in names)))

    def _choice(self, denoiser: Network) -> Choice:
        return self._chosen(network_name(denoiser))

    def _fitting(self, use: SamplingUse, choice: Choice, concerns: Callable[[Strategy], bool]) -> list[Strategy]:
        fitting: list[Strategy] = []
        for strategy in (self._strategies[name] for name in choice.names):
            if not concerns(strategy):
                continue
            reason = strategy.unfit(use)
            if reason is None:
                fitting.append(strategy)
            elif not strategy.is_certain:  # which most networks have no use for
                self.usage.skip(strategy.name, reason)
        return fitting


def network_name(denoiser: Network) -> str:
    """Return the name under which outcomes of a denoiser's network are stored: its class."""
    return type(getattr(denoiser, "diffusion_model", denoiser)).__name__


def gives_options(strategy: Strategy) -> bool:
    """Return True for a strategy that adds to the options of a denoiser's model."""
    return strategy.target == "denoiser" and type(strategy).options is not Strategy.options


def changes_denoiser(strategy: Strategy) -> bool:
    """Return True for a strategy that changes a denoiser's network; options are set before it is asked."""
    return strategy.target in ("denoiser", "any") and type(strategy).apply is not Strategy.apply


def changes_vae(strategy: Strategy) -> bool:
    """Return True for a strategy that changes a VAE."""
    return strategy.target in ("vae", "any")
