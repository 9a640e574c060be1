"""Room for weights and work on a device."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection

from darkroom.engine.memory.plan import eviction_order
from darkroom.engine.memory.pool_entries import PoolEntries
from darkroom.engine.memory.pool_entry import PoolEntry
from darkroom.engine.memory.pool_report import PoolCounters
from darkroom.engine.memory.ram_room import RamRoom
from darkroom.engine.memory.resident import DeviceMemory

log = logging.getLogger(__name__)


class DeviceRoom:
    """Memory of devices that models take: idle ones are evicted, blocks of those in use offloaded.

    Without `evicts_in_part` a model leaves as a whole. `give_back` frees memory that others hold between runs, and
    returns True where there was some.
    """

    def __init__(
        self,
        entries: PoolEntries,
        ram: RamRoom,
        counters: PoolCounters,
        give_back: Callable[[], bool],
        *,
        evicts_in_part: bool,
    ) -> None:
        self._entries = entries
        self._ram = ram
        self._counters = counters
        self._give_back = give_back
        self._evicts_in_part = evicts_in_part

    def make(self, device: DeviceMemory, least_bytes: int, best_bytes: int) -> None:
        """Free memory of a device while models compute; see `ModelPool.make_room`."""
        free_bytes = before_bytes = device.free_bytes() if best_bytes else 0
        if free_bytes < best_bytes and self.other_memory_was_given_back(device):
            free_bytes = before_bytes = device.free_bytes()
        if free_bytes >= best_bytes:
            return
        for resident_model in eviction_order(self._entries.evictable(device)):
            if free_bytes >= best_bytes:
                break
            self.evict(self._entries[resident_model.id], best_bytes - free_bytes)
            free_bytes += resident_model.loaded_bytes
        free_bytes += self.offload_in_use(device, (), least_bytes - free_bytes)
        in_use = self._entries.in_use_on(device)
        if in_use and free_bytes < least_bytes:
            free_bytes += in_use[0].resident.streams.shrink(least_bytes - free_bytes)
        if free_bytes > before_bytes:
            device.empty_cache()

    def evict(self, entry: PoolEntry, num_bytes: int) -> None:
        """Take at least `num_bytes` of a model that is not in use off its device."""
        in_part = self._evicts_in_part and num_bytes < entry.resident.loaded_bytes
        leaving_bytes = num_bytes if in_part else entry.resident.loaded_bytes
        left = entry.resident.unload(num_bytes if in_part else None, into_ram=self._ram.has(leaving_bytes))
        self._counters.evictions += 1
        self._counters.evicted_bytes += left
        log.debug("%s: %d bytes left the device", entry.resident.name, left)

    def offload_in_use(self, device: DeviceMemory, besides: Collection[PoolEntry], num_bytes: int) -> int:
        """Offload blocks of other models in use, which are streamed from then on; return the bytes freed."""
        given_bytes = 0
        for entry in self._entries.in_use_on(device):
            if entry not in besides and given_bytes < num_bytes:
                given_bytes += entry.resident.offload_in_use(num_bytes - given_bytes)
        return given_bytes

    def other_memory_was_given_back(self, device: DeviceMemory) -> bool:
        """Let those give memory back who hold it between runs and can do without; return True where some did."""
        was_some = self._give_back()
        if was_some:
            device.empty_cache()
        return was_some
