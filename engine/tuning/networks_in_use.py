"""Owner of the changes that strategies have made to networks."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from darkroom.engine.tuning.barred import BarredStrategies, error_in_words
from darkroom.engine.tuning.graphs import place_of_weights
from darkroom.engine.tuning.made_tensors import KeptTensors
from darkroom.engine.tuning.network_state import NetworkChanges, NetworkState
from darkroom.engine.tuning.strategy import SamplingUse, Strategy, Undo, nothing

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Changed:
    wanted: tuple[str, ...]
    names: tuple[str, ...] = ()  # those of them that are in force
    num_uses: int = 0
    undos: list[tuple[str, Undo]] = field(default_factory=list)  # by the strategy's name
    changes: NetworkChanges | None = None
    keep: Undo = nothing  # the tensors that strategies made, for the next use

    def undo(self, barred: BarredStrategies) -> None:
        """Take all changes off the network; a strategy that fails to is barred, and what it left is taken off."""
        while self.undos:
            name, undo = self.undos.pop()
            try:
                undo()
            except Exception as error:  # noqa: BLE001 - the strategy: the rest restores the network
                barred.bar((name,), error_in_words(error))
        if self.changes is not None:
            self.changes.revert()
            self.changes = None
        self.keep()
        self.keep, self.names = nothing, ()


class NetworksInUse:
    """Networks with strategies applied.

    Several sampling runs may share a network. Those with the same strategies share them; as soon as one with others
    joins, all continue on the plain path, until the last one has left. Changes are made between evaluations only.
    """

    def __init__(self, barred: BarredStrategies | None = None) -> None:
        self._barred = BarredStrategies() if barred is None else barred
        self._lock = threading.RLock()
        self._changed: dict[int, _Changed] = {}
        self._kept = KeptTensors()

    def release(self) -> bool:
        """Drop tensors that strategies have made and no run uses; return True where there were some."""
        with self._lock:
            was_some = len(self._kept) > 0
            self._kept.release()
        return was_some

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
            changes = None if entry is None else entry.changes
            forwards = {} if changes is None else changes.forwards
            own = vars(use.denoiser)
            new = () if changes is None else changes.new_attributes
            attributes = {name: own.pop(name) for name in new if name in own}
            for module in forwards:
                del module.__dict__["forward"]
            try:
                yield
            finally:
                own.update(attributes)
                for module, forward in forwards.items():
                    module.__dict__["forward"] = forward

    @contextmanager
    def changed(self, use: SamplingUse, strategies: Sequence[Strategy]) -> Iterator[tuple[str, ...]]:
        """Apply strategies to a network while the context is open. Yields the names of those in force at its start."""
        key = id(use.denoiser)
        with self._lock:
            entry = self._changed.get(key)
            if entry is None:
                entry = self._changed[key] = self._apply(use, strategies)
            elif entry.wanted != tuple(item.name for item in strategies):
                entry.undo(self._barred)
            entry.num_uses += 1
            names = entry.names
        try:
            yield names
        finally:
            with self._lock:
                entry.num_uses -= 1
                if not entry.num_uses:
                    entry.undo(self._barred)
                    del self._changed[key]

    def _apply(self, use: SamplingUse, strategies: Sequence[Strategy]) -> _Changed:
        """Apply strategies in their order. One that raises leaves the network as it was before the first."""
        entry = _Changed(tuple(strategy.name for strategy in strategies))
        if any(strategy.makes_tensors for strategy in strategies):
            entry.keep = self._take_made(use, entry.wanted)
        before = NetworkState(use.denoiser, use.network) if strategies else None
        try:
            for strategy in strategies:
                reason = strategy.unfit(use)  # of one that was fit before the others changed the network
                if reason is not None:
                    log.info("strategy not used: name=%s reason=%s", strategy.name, reason)
                    continue
                entry.undos.append((strategy.name, strategy.apply(use)))
                entry.names = (*entry.names, strategy.name)
                use.evaluation.in_force = entry.names
                if strategy.makes_tensors:
                    use.evaluation.own_tensors = use.evaluation.made.identity_with(strategy.name)
        except BaseException:
            entry.keep = nothing  # they may be made in part
            if before is not None:
                entry.changes = NetworkState(use.denoiser, use.network).changes_since(before)
            entry.undo(self._barred)
            raise
        if before is not None and entry.names:
            entry.changes = NetworkState(use.denoiser, use.network).changes_since(before)
        return entry

    def _take_made(self, use: SamplingUse, names: tuple[str, ...]) -> Undo:
        """Give the use the tensors that its strategies made before; return what keeps those that it leaves."""
        patches = use.patcher.patches_uuid if use.patcher.patches else None
        state = (patches, place_of_weights(use.network))
        made = use.evaluation.made = self._kept.take(use.network, names, state)
        return lambda: self._kept.keep(made, use.network, names, state, use.patcher.free_bytes())
