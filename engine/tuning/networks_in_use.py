"""Owner of the changes that strategies have made to networks."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from torch import nn

from engine.tuning.strategy import SamplingUse, Strategy, Undo, has_own_forward

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Changed:
    wanted: tuple[str, ...]
    names: tuple[str, ...] = ()  # those of them that are in force
    num_uses: int = 0
    undos: list[Undo] = field(default_factory=list)
    forwards: dict[nn.Module, object] = field(default_factory=dict)  # those that strategies gave to modules

    def undo(self) -> None:
        while self.undos:
            self.undos.pop()()
        self.names = ()
        self.forwards.clear()


class NetworksInUse:
    """Networks with strategies applied.

    Several sampling runs may share a network. Those with the same strategies share them; as soon as one with others
    joins, all continue on the plain path, until the last one has left. Changes are made between evaluations only.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._changed: dict[int, _Changed] = {}

    def check_integrity(self) -> None:
        """Raise AssertionError while a network is changed. For when nothing samples."""
        assert not self._changed, [entry.names for entry in self._changed.values()]

    @contextmanager
    def plain(self, use: SamplingUse) -> Iterator[None]:
        """Take the changes off a network while the context is open, so that a run that joins sees it as the first did.

        Nothing may be evaluated meanwhile.
        """
        with self._lock:
            entry = self._changed.get(id(use.denoiser))
            forwards = {} if entry is None else entry.forwards
            for module in forwards:
                del module.__dict__["forward"]
            try:
                yield
            finally:
                for module, forward in forwards.items():
                    module.__dict__["forward"] = forward

    @contextmanager
    def changed(self, use: SamplingUse, strategies: Sequence[Strategy]) -> Iterator[tuple[str, ...]]:
        """Apply strategies to a network while the context is open. Yields the names of those in force at its start."""
        key = id(use.denoiser)
        with self._lock:
            entry = self._changed.get(key)
            if entry is None:
                entry = self._changed[key] = _apply(use, strategies)
            elif entry.wanted != tuple(item.name for item in strategies):
                entry.undo()
            entry.num_uses += 1
            names = entry.names
        try:
            yield names
        finally:
            with self._lock:
                entry.num_uses -= 1
                if not entry.num_uses:
                    entry.undo()
                    del self._changed[key]


def _apply(use: SamplingUse, strategies: Sequence[Strategy]) -> _Changed:
    """Apply strategies in their order; without the ones before it, a failing one leaves the network as it was."""
    entry = _Changed(tuple(strategy.name for strategy in strategies))
    replaced = {module for module in use.network.modules() if has_own_forward(module)} if strategies else set()
    for strategy in strategies:
        reason = strategy.unfit(use)  # of one that was fit before the others changed the network
        if reason is not None:
            log.info("strategy not used: name=%s reason=%s", strategy.name, reason)
            continue
        try:
            entry.undos.append(strategy.apply(use))
        except BaseException:
            entry.undo()
            raise
        entry.names = (*entry.names, strategy.name)
        use.evaluation.in_force = entry.names
        if strategy.makes_tensors:
            use.evaluation.own_tensors = object()
    if entry.names:
        entry.forwards = {
            module: module.__dict__["forward"]
            for module in use.network.modules()
            if has_own_forward(module) and module not in replaced
        }
    return entry
