"""Owner of the strategies of one engine and of the outcomes that decide which of them are used."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from darkroom.contract.errors import EngineError
from darkroom.engine.diffusion.sampling_run import sampling_run
from darkroom.engine.errors import OutOfMemory
from darkroom.engine.tuning.barred import BarredStrategies, error_in_words
from darkroom.engine.tuning.blame import asked_strategy, strategy_of_code
from darkroom.engine.tuning.choose import TIME_OVER, Measured, Names, choose
from darkroom.engine.tuning.network_identity import NetworkIdentities
from darkroom.engine.tuning.networks_in_use import NetworksInUse
from darkroom.engine.tuning.outcome import PLAIN, Choice, Outcome
from darkroom.engine.tuning.quality import Quality
from darkroom.engine.tuning.registry import make_strategies
from darkroom.engine.tuning.run import Fallback, TunedRun, Usage
from darkroom.engine.tuning.strategy import MachineFacts, SamplingUse, Strategy, nothing
from darkroom.engine.tuning.workload import Trial

log = logging.getLogger(__name__)


def _no_state(device: torch.device) -> Callable[[], None]:
    return nothing


class Tuner:
    """Strategies of one engine.

    `allowed` are the strategies that the operator named, () for none and None for all that need no naming. An outcome
    is used for the network that was measured, by its class and shape. A network without one takes the plain path, with
    the strategies that are certain. A strategy that fails is barred until the next start.

    `save_random_state` and `device_errors` are the engine's: see `Fallback`.
    """

    def __init__(
        self,
        allowed: tuple[str, ...] | None,
        folder: Path | None = None,
        save_random_state: Callable[[torch.device], Callable[[], None]] = _no_state,
        device_errors: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self.allowed = allowed
        self.barred = BarredStrategies()
        self._fallback = Fallback(self.barred, save_random_state, device_errors)
        self._strategies = dict(make_strategies(folder, self.barred))
        self._networks = NetworksInUse(self.barred)
        self._identities = NetworkIdentities()
        self._outcomes: dict[str, Outcome] = {}
        self._lock = threading.Lock()

    @property
    def is_on(self) -> bool:
        return self.allowed != ()

    @property
    def strategies(self) -> Mapping[str, Strategy]:
        """Strategies by name."""
        return MappingProxyType(self._strategies)

    def replace(self, *strategies: Strategy) -> None:
        """Use each of these in place of the strategy of its name, or in addition. For when nothing runs."""
        self._strategies |= {strategy.name: strategy for strategy in strategies}

    @property
    def outcomes(self) -> Mapping[str, Outcome]:
        """Outcomes by the class and shape of the network, the latest last."""
        with self._lock:
            return dict(self._outcomes)

    @property
    def failures(self) -> Mapping[str, int]:
        """Number of failures of every strategy since the start."""
        return dict.fromkeys(self._strategies, 0) | dict(self.barred.failures)

    def adopt(self, outcome: Outcome) -> None:
        """Use an outcome that was measured before. Strategies that the operator does not allow are left out of it."""
        with self._lock:
            self._outcomes.pop(outcome.key, None)
            self._outcomes[outcome.key] = outcome

    def tuned_run(self, quality: Quality, *, may_share: bool = False) -> TunedRun:
        """Return the tuning of a run; with `may_share`, of one beside which others may compute."""
        return TunedRun(
            quality, self._strategies, lambda use: self._choice(use, quality), self._networks, self._fallback,
            may_share=may_share,
        )  # fmt: skip

    @contextmanager
    def forced(self, names: Sequence[str]) -> Iterator[Usage]:
        """Sample with exactly these strategies, whatever was measured, while the context is open.

        The error of one is raised: nothing is repeated.
        """
        choice = Choice(tuple(names))
        run = TunedRun(Quality.DRAFT, self._strategies, lambda use: choice, self._networks)
        with replace(sampling_run(), tuning=run).current():
            yield run.usage

    def release(self) -> bool:
        """Release the memory that strategies hold between runs; return True where there was some."""
        released = [self._networks.release()]
        for name, strategy in self._strategies.items():
            try:
                released.append(strategy.release())
            except Exception as error:  # noqa: BLE001 - the strategy, which costs itself alone
                self.barred.bar((name,), error_in_words(error))
        return any(released)

    def close(self) -> None:
        """Stop work in the background. A compilation that runs is not waited for."""
        for strategy in self._strategies.values():
            strategy.close()

    def check_integrity(self) -> None:
        """Raise AssertionError where a strategy has left a change behind. For when nothing runs."""
        self._networks.check_integrity()

    def report(self) -> dict[str, Any]:
        """Return the strategies, those that the operator named (None: all), the outcomes in use, and what failed.

        It is in JSON form. `barred` has the error of each strategy that is used by no run until the next start,
        `failures` how often it failed.
        """
        return {
            "allowed": self.allowed,
            "strategies": [
                {"name": item.name, "quality": str(item.quality), "about": item.about, "is_opt_in": item.is_opt_in}
                for item in self._strategies.values()
            ],
            "barred": dict(self.barred.reasons),
            "failures": dict(self.barred.failures),
            "outcomes": [outcome.as_json() for outcome in self.outcomes.values()],
        }

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
            return self._compare(trial, names, before, settle)

        figures, choices = choose(list(self._strategies.values()), compare, self._excluded(machine))
        network = trial.network
        outcome = Outcome(
            dict(identity),
            network.name,
            trial.description,
            trial.plain_it_per_s,
            tuple(figures),
            choices,
            round(trial.now() - began, 3),
            fingerprint=network.fingerprint,
            vae=trial.vae,
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

    def _compare(self, trial: Trial, names: Names, before: Names, settle_seconds: float) -> Measured:
        """Measure strategies; one that raises has a failure. Raises errors of the engine, such as a lost device."""
        barred = self.barred.reasons
        if names[-1] in barred:
            return Measured(failure=barred[names[-1]])
        names, before = (tuple(name for name in given if name not in barred) for given in (names, before))
        try:
            with self._fallback.device_errors():
                found = trial.compare(names, before, self, settle_seconds)
            return Measured(failure=self.barred.reason(names[-1])) if names[-1] in self.barred else found
        except OutOfMemory as error:
            reason, guilty = error_in_words(error), names[-1]
        except EngineError:
            raise
        except Exception as error:  # noqa: BLE001 - the strategies: one that fails costs itself, not the measurement
            reason = error_in_words(error)
            known = [self._strategies[name] for name in names]
            guilty = asked_strategy(error, known) or strategy_of_code(error, known) or names[-1]
            log.debug("error of a measured strategy", exc_info=error)
        # Only here are the error's frames gone, and with them the tensors that they held.
        self.release()
        broken = (guilty,) if guilty != names[-1] else self._broken(trial, before)
        if not broken:
            return Measured(failure=reason)
        self.barred.bar(broken, reason)  # chosen before, and failing now: the rest is measured without
        return self._compare(trial, names, before, settle_seconds)

    def _broken(self, trial: Trial, names: Names) -> Names:
        """Return these strategies, which were measured before, if they fail by themselves now."""
        if not names:
            return ()
        try:
            with self._fallback.device_errors(), self.forced(names):
                trial.draw()
        except OutOfMemory:
            return ()
        except EngineError:
            raise
        except Exception as error:  # noqa: BLE001 - the strategies
            log.debug("error of strategies that were measured before", exc_info=error)
            return tuple(name for name in names if not self._strategies[name].is_certain) or names
        return ()

    def _excluded(self, machine: MachineFacts) -> dict[str, str]:
        found: dict[str, str] = {}
        for name, strategy in self._strategies.items():
            try:
                reason = self.barred.reason(name) or self._why_not(name, machine) or strategy.missing(machine)
            except Exception as error:  # noqa: BLE001 - the strategy, which costs itself alone
                reason = error_in_words(error)
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

    def _choice(self, use: SamplingUse, quality: Quality) -> Choice:
        outcome = self._outcome(use)
        choice = PLAIN if outcome is None else outcome.choice(quality)
        certain = [name for name, item in self._strategies.items() if item.is_certain and quality.allows(item.quality)]
        names = dict.fromkeys((*certain, *choice.names))
        allowed = tuple(name for name in names if self.allowed is None or name in self.allowed)
        return Choice(allowed, choice.it_per_s, choice.error)

    def _outcome(self, use: SamplingUse) -> Outcome | None:
        """Return the outcome that was measured with this network or VAE, or None."""
        with self._lock:
            outcomes = self._outcomes
            if not outcomes:
                return None
            if use.network is use.denoiser:  # a VAE
                key = self._identities.of(use.network).key
                return next((item for item in reversed(outcomes.values()) if item.vae == key), None)
            return outcomes.get(self._identities.of(use.network, _computed_in(use)).key)


def _computed_in(use: SamplingUse) -> torch.dtype | None:
    """Return the type that a denoiser's network computes in, which a node may have set for this run."""
    patched: torch.dtype | None = use.patcher.object_patches.get("manual_cast_dtype")
    return patched or getattr(use.denoiser, "compute_dtype", None)
