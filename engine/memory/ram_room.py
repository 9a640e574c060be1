"""Room for weights in RAM."""

from __future__ import annotations

import logging
from collections.abc import Callable

from darkroom.engine.memory import machine_memory
from darkroom.engine.memory.plan import eviction_order
from darkroom.engine.memory.pool_entries import PoolEntries
from darkroom.engine.memory.pool_entry import PoolEntry
from darkroom.engine.memory.pool_report import PoolCounters

log = logging.getLogger(__name__)


class RamRoom:
    """RAM that idle models take, whose weights a file can give again.

    `ram_bytes` returns the free and the total bytes of RAM; `give_back` frees other memory, and returns True where
    there was some.
    """

    def __init__(
        self,
        entries: PoolEntries,
        counters: PoolCounters,
        ram_bytes: Callable[[], tuple[int, int]],
        give_back: Callable[[], bool],
    ) -> None:
        self._entries = entries
        self._counters = counters
        self._ram_bytes = ram_bytes
        self._give_back = give_back

    def make(self, coming_bytes: int, *, in_ram: bool) -> None:
        """Drop idle models from RAM, to be read again, while it is short.

        `in_ram`: the coming bytes are allocated in RAM too.
        """
        idle = self._entries.idle()
        if not idle:
            return
        missing = (coming_bytes if in_ram else 0) - self._to_spare()
        if missing > 0 and self._give_back():
            missing = (coming_bytes if in_ram else 0) - self._to_spare()
        if missing <= 0:
            return
        for resident_model in eviction_order([entry.resident_model(entry_id) for entry_id, entry in idle.items()]):
            if missing <= 0:
                return
            missing -= self.drop(idle[resident_model.id])

    def has(self, num_bytes: int) -> bool:
        """Return True where that much RAM may be taken for copies that a file has as well."""
        return self._to_spare() >= num_bytes

    def drop(self, entry: PoolEntry) -> int:
        """Drop a model that is not in use from RAM, as far as a file has it; return the bytes freed."""
        if not entry.resident.device.has_own_memory:
            entry.resident.unload()  # undoes patches, which would be lost
        dropped = entry.resident.drop()
        if dropped:
            self._counters.dropped += 1
            log.info("%s left RAM: %d MiB, to be read again", entry.resident.name, dropped >> 20)
        return dropped

    def _to_spare(self) -> int:
        """Return the free RAM above the floor; negative while RAM is short."""
        return machine_memory.spare_bytes(*self._ram_bytes())
