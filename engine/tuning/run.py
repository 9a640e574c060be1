"""Tuning of one run of a prompt: which strategies it may use, which it used, and the plain path after one fails."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TypeVar

import torch

from darkroom.contract.errors import EngineError
from darkroom.engine.diffusion.options import Network, OptionDict, Options
from darkroom.engine.diffusion.tuned import RunTuning
from darkroom.engine.diffusion.wrappers import merge_options
from darkroom.engine.errors import DeviceLost, OutOfMemory
from darkroom.engine.tuning.barred import BarredStrategies, error_in_words
from darkroom.engine.tuning.blame import asked_strategy, strategy_of_code
from darkroom.engine.tuning.networks_in_use import NetworksInUse
from darkroom.engine.tuning.outcome import Choice
from darkroom.engine.tuning.quality import Quality
from darkroom.engine.tuning.strategy import SamplingUse, Strategy

log = logging.getLogger(__name__)

T = TypeVar("T")
Frames = Generator[T, None, None]

Chosen = Callable[[SamplingUse], Choice]
"""Use of a network or VAE -> the strategies for it."""

MEMORY_WAS_SHORT = "the device ran out of memory in this run"


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

    def copy(self) -> Usage:
        return replace(self, used=list(self.used), unused=dict(self.unused))

    def become(self, other: Usage) -> None:
        """Take over what another record of this run holds."""
        self.used[:], self.error = other.used, other.error
        self.unused.clear()
        self.unused.update(other.unused)


@dataclass(frozen=True, slots=True)
class Fallback:
    """Means to repeat plainly what a strategy has failed.

    `save_random_state` returns the function that restores the generators of a device; `device_errors` translates
    torch's errors into the engine's `OutOfMemory` and `DeviceLost`.
    """

    barred: BarredStrategies
    save_random_state: Callable[[torch.device], Callable[[], None]]
    device_errors: Callable[[], AbstractContextManager[None]]


@dataclass(slots=True)
class _Attempt:
    """One attempt to sample or to decode: the strategies that were in force in it, by name."""

    is_plain: bool = False
    in_force: dict[str, None] = field(default_factory=dict)


@dataclass(slots=True)
class _RunState:
    usage: Usage
    memory_was_short: bool = False


class TunedRun:
    """Implementation of `darkroom.engine.diffusion.tuned.RunTuning` for one run.

    With a `fallback` the first error of a strategy costs the strategy: what was being sampled or decoded is repeated
    plainly. Without one it is raised, as a measurement wants it. `may_share` is True where other runs may compute at
    the same time.
    """

    def __init__(
        self,
        quality: Quality,
        strategies: dict[str, Strategy],
        chosen: Chosen,
        networks: NetworksInUse,
        fallback: Fallback | None = None,
        *,
        may_share: bool = False,
    ) -> None:
        self._strategies = strategies
        self._chosen = chosen
        self._networks = networks
        self._fallback = fallback
        self._may_share = may_share
        self._state = _RunState(Usage(quality))
        self._attempt = _Attempt()

    @property
    def usage(self) -> Usage:
        return self._state.usage

    def attempt(self, patcher: Network, work: Callable[[RunTuning], T]) -> T:
        """Return the result of `work`, made again on the plain path where a strategy failed.

        The strategy is barred once the plain path has succeeded; an error of that one is the job's own. Errors that are
        the run's own are raised at once: those of the engine, as an interruption, and a device without memory, after
        which this run uses no strategies.
        """
        fallback = self._fallback
        if fallback is None or self._attempt.is_plain:
            return work(self)
        restore = fallback.save_random_state(patcher.load_device)
        used, own = self.usage.copy(), self._with(_Attempt())
        try:
            return work(own)
        except Exception as error:  # noqa: BLE001 - the strategies: what they fail is repeated without them
            failed = self._failed(error, own, fallback)
            self.usage.become(used)
            if not failed:
                raise
            reason = error_in_words(error)
        # Only here are the error's frames gone, and with them the tensors that they held.
        restore()
        result = work(self._with(_Attempt(is_plain=True)))
        self._bar(failed, reason, fallback)
        return result

    def attempt_stream(self, patcher: Network, make: Callable[[RunTuning], Frames[T]]) -> Iterator[T]:
        """Iterate over the iterator of `make`, over a plain one where a strategy failed, as `attempt` does."""
        fallback = self._fallback
        if fallback is None or self._attempt.is_plain:
            yield from make(self)
            return
        restore = fallback.save_random_state(patcher.load_device)
        used, own, num_given = self.usage.copy(), self._with(_Attempt()), 0
        try:
            with closing(make(own)) as items:
                for item in items:
                    yield item
                    num_given += 1
            return
        except Exception as error:  # noqa: BLE001 - the strategies: what they fail is repeated without them
            failed = self._failed(error, own, fallback)
            self.usage.become(used)
            if not failed:
                raise
            reason = error_in_words(error)
        restore()
        with closing(make(self._with(_Attempt(is_plain=True)))) as items:
            yield from islice(items, num_given, None)
        self._bar(failed, reason, fallback)

    def sampling_options(self, patcher: Network, options: OptionDict) -> OptionDict:
        """Return the model options with those that chosen strategies add."""
        use = self._use(patcher, patcher.model, options)
        choice = self._chosen(use)
        merged = options
        for strategy in self._fitting(use, choice, gives_options):
            added = strategy.options(use)
            if added:
                merged = merge_options(merged, added)
                self._attempt.in_force[strategy.name] = None
                self.usage.add([strategy.name], self._error([strategy.name], choice))
        return merged

    @contextmanager
    def sampling(self, patcher: Network, network: Network, options: Options) -> Iterator[None]:
        """Apply the chosen strategies to a network while the context is open."""
        with self._changed(self._use(patcher, network, options), changes_denoiser):
            yield

    @contextmanager
    def decoding(self, patcher: Network, network: Network) -> Iterator[None]:
        """Apply the chosen strategies of VAEs to one while the context is open."""
        with self._changed(self._use(patcher, network, {}), changes_vae):
            yield

    def _use(self, patcher: Network, network: Network, options: Options) -> SamplingUse:
        return SamplingUse(patcher, network, options, may_share=self._may_share)

    @contextmanager
    def _changed(self, use: SamplingUse, concerns: Callable[[Strategy], bool]) -> Iterator[None]:
        choice = self._chosen(use)
        with self._networks.plain(use):
            own = self._fitting(use, choice, concerns)
        with self._networks.changed(use, own) as names:
            self._attempt.in_force.update(dict.fromkeys(names))
            self.usage.add(names, self._error(names, choice))
            yield

    def _with(self, attempt: _Attempt) -> TunedRun:
        """Return this run's tuning with a record of its own of what is in force."""
        made = TunedRun(
            self.usage.quality, self._strategies, self._chosen, self._networks, self._fallback,
            may_share=self._may_share,
        )  # fmt: skip
        made._state, made._attempt = self._state, attempt
        return made

    def _failed(self, error: Exception, own: TunedRun, fallback: Fallback) -> Sequence[str]:
        """Return the strategies that an error is blamed on, () for an error of the run's own.

        That is the one whose code raised it where the traceback tells, else all that were in force; the certain ones,
        which leave out work, only where there were no others.
        """
        asked = asked_strategy(error, self._strategies.values())
        in_force = [self._strategies[name] for name in own._attempt.in_force]
        kind = _own_error(error, fallback)
        if kind is OutOfMemory and (asked or in_force):
            self._state.memory_was_short = True
        if kind is not None or not (asked or in_force):
            return ()
        log.debug("error of a tuned run", exc_info=error)
        guilty = asked or strategy_of_code(error, in_force)
        if guilty is not None:
            return (guilty,)
        uncertain = [strategy.name for strategy in in_force if not strategy.is_certain]
        return uncertain or [strategy.name for strategy in in_force]

    def _bar(self, names: Sequence[str], reason: str, fallback: Fallback) -> None:
        for name in names:
            self.usage.unused[name] = f"it failed: {reason}"
        fallback.barred.bar(names, reason)

    def _error(self, names: Sequence[str], choice: Choice) -> float:
        """Return the choice's error, or more where one of these is used unmeasured, whose error is at most its own."""
        return max((choice.error, *(self._strategies[name].certain_error for name in names)))

    def _fitting(self, use: SamplingUse, choice: Choice, concerns: Callable[[Strategy], bool]) -> list[Strategy]:
        if self._attempt.is_plain:
            return []
        fitting: list[Strategy] = []
        for strategy in (self._strategies[name] for name in choice.names):
            if not concerns(strategy):
                continue
            reason = self._obstacle(strategy, use)
            if reason is None:
                fitting.append(strategy)
            elif not strategy.is_certain:  # which most networks have no use for
                self.usage.skip(strategy.name, reason)
        return fitting

    def _obstacle(self, strategy: Strategy, use: SamplingUse) -> str | None:
        """Return the reason why a strategy cannot be used now, or None."""
        barred = None if self._fallback is None else self._fallback.barred.reason(strategy.name)
        if barred is not None:
            return f"barred until the next start: {barred}"
        if self._state.memory_was_short:
            return MEMORY_WAS_SHORT
        return strategy.unfit(use)


def _own_error(error: Exception, fallback: Fallback) -> type[EngineError] | None:
    """Return the kind of an error that no strategy is blamed for, as it is in the engine's words; None for others."""
    if isinstance(error, EngineError):
        return type(error)
    try:
        with fallback.device_errors():
            raise error.with_traceback(error.__traceback__)
    except (OutOfMemory, DeviceLost) as known:
        return type(known)
    except Exception:  # noqa: BLE001 - the error itself, which is no device's
        return None


def gives_options(strategy: Strategy) -> bool:
    """Return True for a strategy that adds to the options of a denoiser's model."""
    return strategy.target == "denoiser" and type(strategy).options is not Strategy.options


def changes_denoiser(strategy: Strategy) -> bool:
    """Return True for a strategy that changes a denoiser's network; options are set before it is asked."""
    return strategy.target in ("denoiser", "any") and type(strategy).apply is not Strategy.apply


def changes_vae(strategy: Strategy) -> bool:
    """Return True for a strategy that changes a VAE."""
    return strategy.target in ("vae", "any")
