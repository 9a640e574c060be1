"""Owner of the strategies of one engine and of the outcomes that decide which of them are used."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from engine.diffusion.tuned import tuning_active
from engine.tuning.barred import BarredStrategies
from engine.tuning.choose import Measured, Names, choose
from engine.tuning.networks_in_use import NetworksInUse
from engine.tuning.outcome import PLAIN, Choice, Outcome
from engine.tuning.quality import Quality
from engine.tuning.registry import make_strategies
from engine.tuning.run import TunedRun, Usage
from engine.tuning.strategy import MachineFacts
from engine.tuning.workload import Trial

log = logging.getLogger(__name__)

OWN_TYPE_OF_VAE = ""
TIME_OVER = "not measured: the time for tuning was over"


class Tuner:
    """Strategies of one engine.

    `allowed` are the strategies that the operator named, () for none and None for all that need no naming. Outcomes are
    kept by the class of the network that was measured; a network without one takes the plain path.
    """

    def __init__(self, allowed: tuple[str, ...] | None, folder: Path | None = None) -> None:
        self.allowed = allowed
        self.barred = BarredStrategies()
        self._strategies = dict(make_strategies(folder, self.barred))
        self._networks = NetworksInUse()
        self._outcomes: dict[str, Outcome] = {}
        self._lock = threading.Lock()

    @property
    def is_on(self) -> bool:
        return self.allowed != ()

    @property
    def outcomes(self) -> Mapping[str, Outcome]:
        """Outcomes by the class of the network."""
        with self._lock:
            return dict(self._outcomes)

    def adopt(self, outcome: Outcome) -> None:
        """Use an outcome that was measured before. Strategies that the operator does not allow are left out of it."""
        with self._lock:
            self._outcomes[outcome.network] = outcome

    @contextmanager
    def running(self, quality: Quality) -> Iterator[Usage]:
        """Tune what samples while the context is open. Yields the record of what is used."""
        run = TunedRun(quality, self._strategies, lambda network: self._choice(network, quality), self._networks)
        with tuning_active(run if self.is_on else None):
            yield run.usage

    @contextmanager
    def forced(self, names: Sequence[str]) -> Iterator[Usage]:
        """Sample with exactly these strategies, whatever was measured, while the context is open."""
        choice = Choice(tuple(names))
        run = TunedRun(Quality.DRAFT, self._strategies, lambda network: choice, self._networks)
        with tuning_active(run):
            yield run.usage

    def release(self) -> None:
        """Release the device memory that strategies hold between runs."""
        for strategy in self._strategies.values():
            strategy.release()

    def close(self) -> None:
        """Stop work in the background. A compilation that runs is not waited for."""
        for strategy in self._strategies.values():
            strategy.close()

    def check_integrity(self) -> None:
        """Raise AssertionError where a strategy has left a change behind. For when nothing runs."""
        self._networks.check_integrity()

    def describe(self) -> list[dict[str, object]]:
        """Return name, quality and purpose of every strategy."""
        return [
            {"name": item.name, "quality": str(item.quality), "about": item.about, "is_opt_in": item.is_opt_in}
            for item in self._strategies.values()
        ]

    def measure(
        self,
        trial: Trial,
        machine: MachineFacts,
        identity: Mapping[str, str],
        settle_seconds: float,
        budget_seconds: float = math.inf,
    ) -> Outcome:
        """Measure every strategy that this machine can have, choose, and use the choice from now on.

        `settle_seconds` is how long each may prepare in the background. No strategy is begun after `budget_seconds`,
        and one that the operator has not named prepares for half of what is left at most. Call while nothing else
        samples.
        """
        began = trial.now()
        with self.forced(()):
            trial.draw_plain()

        def compare(names: Names, before: Names) -> Measured:
            left = budget_seconds - (trial.now() - began)
            if left <= 0:
                return Measured(failure=TIME_OVER)
            settle = settle_seconds if self.allowed is not None else min(settle_seconds, left / 2)
            return trial.compare(names, before, self, settle)

        figures, choices = choose(list(self._strategies.values()), compare, self._excluded(machine))
        outcome = Outcome(
            dict(identity),
            trial.network,
            trial.description,
            trial.plain_it_per_s,
            tuple(figures),
            choices,
            round(trial.now() - began, 3),
        )
        self.adopt(outcome)
        for figure in figures:
            log.info("strategy measured: name=%s is_chosen=%s reason=%s", figure.name, figure.is_chosen, figure.reason)
        return outcome

    def settle(self, names: Names, seconds: float) -> str | None:
        """Wait until these strategies have prepared. Return why one has not, or None."""
        return next(filter(None, (self._strategies[name].settle(seconds) for name in names)), None)

    def target(self, name: str) -> str:
        """Return the kind of network that a strategy changes."""
        return self._strategies[name].target

    def _excluded(self, machine: MachineFacts) -> dict[str, str]:
        found: dict[str, str] = {}
        for name, strategy in self._strategies.items():
            reason = self._why_not(name, machine) or strategy.missing(machine)
            if reason is not None:
                found[name] = reason
        return found

    def _why_not(self, name: str, machine: MachineFacts) -> str | None:
        strategy = self._strategies[name]
        if self.allowed is not None:
            if name not in self.allowed:
                return "not named by the setting"
        elif strategy.is_opt_in or (name == "compiled_blocks" and machine.device_type == "cpu"):
            return "measured only where the setting names it"
        if strategy.is_size_sensitive and not machine.is_full_size:
            return "measured only with a network of full size"
        return None

    def _choice(self, network: str, quality: Quality) -> Choice:
        with self._lock:
            outcomes = self._outcomes
            outcome = next(iter(outcomes.values()), None) if network == OWN_TYPE_OF_VAE else outcomes.get(network)
        choice = PLAIN if outcome is None else outcome.choice(quality)
        certain = [name for name, item in self._strategies.items() if item.is_certain and quality.allows(item.quality)]
        names = dict.fromkeys((*certain, *choice.names))
        allowed = tuple(name for name in names if self.allowed is None or name in self.allowed)
        return Choice(allowed, choice.it_per_s, choice.error)
