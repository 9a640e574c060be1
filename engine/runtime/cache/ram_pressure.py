"""Keep every result until memory is short, then let the oldest and largest go: `--cache-ram`.

Memory is looked at when a run starts, and after a result when enough was kept or enough time has passed since the last
look. When less than the headroom is free, results leave by age x size until a tenth more than the headroom is (so that
the next look does not find it short again at once). What the running prompt still needs is never let go: the run holds
it anyway, and nothing would be won.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from darkroom.contract.graph.signature import Key
from darkroom.engine.runtime.cache.result_size import size_bytes
from darkroom.engine.runtime.cache.store import NodeResult, ResultCache

HYSTERESIS = 1.1
LOOK_EVERY_BYTES = 64 * 2**20
LOOK_EVERY_SECONDS = 0.25
LEAST_BYTES = 1024  # of any result: its lists and strings


@dataclass(slots=True)
class _Kept:
    result: NodeResult
    size_bytes: int
    used: int  # the last run that named it or took it


def choose_evictions(kept: Iterable[tuple[Key, int, int]], missing_bytes: int) -> list[Key]:
    """Choose which of `kept` (key, bytes, age in runs) go to free `missing_bytes`: the greatest age x size first."""
    chosen: list[Key] = []
    for key, size, _ in sorted(kept, key=lambda item: (item[2] + 1) * item[1], reverse=True):
        if missing_bytes <= 0:
            break
        chosen.append(key)
        missing_bytes -= size
    return chosen


class RamPressureCache(ResultCache):
    """`free_bytes()` reads what may still be taken; `headroom_bytes` of it are to stay free."""

    forgets_within_run = True

    def __init__(
        self, headroom_bytes: int, free_bytes: Callable[[], int], now: Callable[[], float] = time.monotonic
    ) -> None:
        self._headroom_bytes = headroom_bytes
        self._free_bytes = free_bytes
        self._now = now
        self._kept: dict[Key, _Kept] = {}
        self._in_use: set[Key] = set()
        self._generation = 0
        self._looked_at = now()
        self._bytes_since = 0

    def begin(self, keys: Mapping[str, Key], classes: Mapping[str, str]) -> None:
        self._generation += 1
        self._in_use.clear()
        for key in keys.values():
            if key in self._kept:
                self._kept[key].used = self._generation
        self._look()

    def expand(self, owner: str, keys: Mapping[str, Key], classes: Mapping[str, str]) -> None:
        return None  # an expanded node counts as any other

    def get(self, group: str | None, key: Key) -> NodeResult | None:
        kept = self._kept.get(key)
        if kept is None:
            return None
        kept.used = self._generation
        self._in_use.add(key)
        return kept.result

    def put(self, group: str | None, key: Key, result: NodeResult) -> None:
        size = max(LEAST_BYTES, size_bytes(result.outputs))
        self._kept[key] = _Kept(result, size, self._generation)
        self._in_use.add(key)
        self._bytes_since += size
        if self._bytes_since >= LOOK_EVERY_BYTES or self._now() - self._looked_at >= LOOK_EVERY_SECONDS:
            self._look()

    def consumed(self, group: str | None, key: Key) -> None:
        self._in_use.discard(key)

    def drop(self, group: str | None, key: Key) -> None:
        self._kept.pop(key, None)
        self._in_use.discard(key)

    def forget_results(self) -> None:
        self._kept.clear()
        self._in_use.clear()

    def clear(self) -> None:
        self.forget_results()

    def __len__(self) -> int:
        return len(self._kept)

    def check_integrity(self) -> None:
        """Raise AssertionError when something is in use that is not kept."""
        assert self._in_use <= self._kept.keys(), "a result is in use that is not kept"

    def _look(self) -> None:
        self._looked_at = self._now()
        self._bytes_since = 0
        free = self._free_bytes()
        if free >= self._headroom_bytes:
            return
        missing = round(self._headroom_bytes * HYSTERESIS) - free
        may_go = (
            (key, kept.size_bytes, self._generation - kept.used)
            for key, kept in self._kept.items()
            if key not in self._in_use
        )
        for key in choose_evictions(may_go, missing):
            del self._kept[key]
