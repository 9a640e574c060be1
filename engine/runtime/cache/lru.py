"""Keep the last N results, counted in runs: the results that the fewest recent runs have named go first.

As in ComfyUI room is made when a run starts, by whole generations (a run each), and what the run itself names stays; an
expanded node counts as any other.
"""

from __future__ import annotations

from collections.abc import Mapping

from darkroom.contract.graph.signature import Key
from darkroom.engine.runtime.cache.store import NodeResult, ResultCache


class LruCache(ResultCache):
    def __init__(self, size: int) -> None:
        self._size = size
        self._results: dict[Key, NodeResult] = {}
        self._used: dict[Key, int] = {}  # the run that named the key last
        self._generation = 0

    def begin(self, keys: Mapping[str, Key], classes: Mapping[str, str]) -> None:
        self._generation += 1
        self._use(keys)
        too_many = len(self._results) - self._size
        if too_many <= 0:
            return
        for generation in sorted({self._used[key] for key in self._results} - {self._generation}):
            for key in [key for key in self._results if self._used[key] == generation]:
                del self._results[key]
                del self._used[key]
            if len(self._results) <= self._size:
                break
        self._used = {key: used for key, used in self._used.items() if key in self._results or used == self._generation}

    def expand(self, owner: str, keys: Mapping[str, Key], classes: Mapping[str, str]) -> None:
        self._use(keys)

    def get(self, group: str | None, key: Key) -> NodeResult | None:
        result = self._results.get(key)
        if result is not None:
            self._used[key] = self._generation
        return result

    def put(self, group: str | None, key: Key, result: NodeResult) -> None:
        self._results[key] = result
        self._used[key] = self._generation

    def drop(self, group: str | None, key: Key) -> None:
        self._results.pop(key, None)

    def forget_results(self) -> None:
        self._results.clear()

    def clear(self) -> None:
        self._results.clear()
        self._used.clear()

    def __len__(self) -> int:
        return len(self._results)

    def _use(self, keys: Mapping[str, Key]) -> None:
        for key in keys.values():
            self._used[key] = self._generation
