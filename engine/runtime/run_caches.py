"""Caches of the threads that runs take: results of nodes, and their instances."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from darkroom.engine.runtime.cache.instances import InstanceCache
from darkroom.engine.runtime.cache.store import ResultCache


class RunCaches:
    """One cache of results and one of instances a slot: a cache is of one prompt after the other.

    Used by the run that has the turn alone.
    """

    def __init__(self, make_results: Callable[[], ResultCache], num_slots: int) -> None:
        self._results = [make_results() for _ in range(num_slots)]
        self._instances = [InstanceCache() for _ in range(num_slots)]
        self._busy: set[int] = set()  # whose caches a run uses
        self._stale: set[int] = set()  # those of them to clear at its end

    def results(self, slot: int) -> ResultCache:
        return self._results[slot]

    def instances(self, slot: int) -> InstanceCache:
        return self._instances[slot]

    @contextmanager
    def in_use(self, slot: int) -> Iterator[None]:
        """Keep the caches of a slot while the context is open, also where all are cleared meanwhile."""
        self._busy.add(slot)
        try:
            yield
        finally:
            self._busy.discard(slot)
            if slot in self._stale:
                self._clear(slot)

    def clear(self) -> None:
        """Clear the caches of all slots: those that a run uses at its end."""
        for slot in range(len(self._results)):
            if slot in self._busy:
                self._stale.add(slot)
            else:
                self._clear(slot)

    def _clear(self, slot: int) -> None:
        self._stale.discard(slot)
        self._results[slot].clear()
        self._instances[slot].clear()
