"""The loaded models, by id, from their first handle to their last."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections import deque
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from darkroom.engine.memory.leaks import ReleasedModels
from darkroom.engine.memory.plan import ResidentModel
from darkroom.engine.memory.pool_entry import PoolEntry
from darkroom.engine.memory.residency import Residency
from darkroom.engine.memory.resident import DeviceMemory, Resident


class PoolEntries:
    """Entries of the loaded models. Used on the GPU thread only, except for iteration over a copy.

    Python may finalise a handle at any point, within a loop over all models too, and on another thread when the cycle
    collector runs there: its model is only queued then, and removed when no operation of the pool is in progress.
    """

    def __init__(self) -> None:
        self._entries: dict[int, PoolEntry] = {}
        self._ids = itertools.count(1)
        self._ended: deque[int] = deque()  # ids of models whose handles are gone
        self._num_busy = 0  # operations in progress, during which no model may be removed
        self._thread = threading.get_ident()
        self._gone = ReleasedModels()

    def next_id(self) -> int:
        return next(self._ids)

    def add(self, entry_id: int, entry: PoolEntry, handle: Residency) -> None:
        """Add a model, which stays as long as its handle is referenced."""
        with self.busy():
            self._entries[entry_id] = entry
        weakref.finalize(handle, self._end, entry_id)

    def __getitem__(self, entry_id: int) -> PoolEntry:
        return self._entries[entry_id]

    def __iter__(self) -> Iterator[PoolEntry]:
        return iter(self._entries.values())

    def snapshot(self) -> list[PoolEntry]:
        """Return the entries of this moment. For any thread."""
        return list(self._entries.values())

    def idle(self) -> dict[int, PoolEntry]:
        """Return the entries that are not in use, by id."""
        return {entry_id: entry for entry_id, entry in self._entries.items() if not entry.uses}

    def by_id(self, entries: Collection[PoolEntry]) -> dict[int, PoolEntry]:
        """Return these entries by their id."""
        return {entry_id: entry for entry_id, entry in self._entries.items() if entry in entries}

    def evictable(self, device: DeviceMemory, besides: Collection[PoolEntry] = ()) -> list[ResidentModel]:
        """Return the models that may be evicted from a device: those on it that are not in use."""
        staying = {id(entry) for entry in besides}
        return [
            entry.resident_model(entry_id)
            for entry_id, entry in self._entries.items()
            if id(entry) not in staying and entry.resident.device is device and entry.can_be_evicted
        ]

    def in_use_on(self, device: DeviceMemory) -> list[PoolEntry]:
        """Return the entries in use on a device."""
        return [entry for entry in self._entries.values() if entry.uses > 0 and entry.resident.device is device]

    def close_streams(self, resident: Resident) -> None:
        """Free the buffers of a device when nothing on it is in use any more."""
        if not any(entry.uses for entry in self._entries.values() if entry.resident.streams is resident.streams):
            resident.streams.close()

    def leaked(self) -> list[str]:
        """Return, once, the models without handles that still exist, with the node that loaded each."""
        return self._gone.leaked()

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Defer the removal of models until the context ends."""
        self._thread = threading.get_ident()
        self._num_busy += 1
        try:
            yield
        finally:
            self._num_busy -= 1
            self._remove_ended()

    def _end(self, entry_id: int) -> None:
        """Queue a model whose handle is gone for removal. Called on any thread, at any time."""
        self._ended.append(entry_id)
        if threading.get_ident() == self._thread:
            self._remove_ended()

    def _remove_ended(self) -> None:
        if self._num_busy:
            return
        self._num_busy += 1
        try:
            while self._ended:
                entry = self._entries.pop(self._ended.popleft())
                entry.resident.release()
                if not entry.is_borrowed:
                    self._gone.watch(entry.resident, entry.origin)
        finally:
            self._num_busy -= 1
