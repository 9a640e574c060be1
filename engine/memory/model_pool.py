"""Pool that owns all loaded models. It evicts by the decisions of `plan.py`.

Nodes hold `Residency` handles; a model leaves the pool when its last handle is gone.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from darkroom.engine.memory import machine_memory
from darkroom.engine.memory.device_room import DeviceRoom
from darkroom.engine.memory.plan import Limits
from darkroom.engine.memory.pool_entries import PoolEntries
from darkroom.engine.memory.pool_entry import PoolEntry
from darkroom.engine.memory.pool_loader import PoolLoader
from darkroom.engine.memory.pool_report import PoolCounters, PoolReport
from darkroom.engine.memory.ram_room import RamRoom
from darkroom.engine.memory.relief import MemorySavings, OomContext, ReliefStep
from darkroom.engine.memory.residency import Residency
from darkroom.engine.memory.resident import DeviceMemory, Origin, Resident
from darkroom.engine.memory.state import VramState
from darkroom.engine.memory.work_measure import WorkMeasure

log = logging.getLogger(__name__)


class ModelPool:
    """Uses of the loaded models. Used on the GPU thread only, except `report`.

    `ram_bytes` returns the free and the total bytes of RAM.
    """

    def __init__(
        self,
        state: VramState,
        *,
        limits: Limits | None = None,
        smart_memory: bool = True,
        ram_bytes: Callable[[], tuple[int, int]] = lambda: (
            machine_memory.available_bytes(),
            machine_memory.total_bytes(),
        ),
    ) -> None:
        self._state = state
        self._smart_memory = smart_memory
        self._clock = 0  # grows with every use of a model
        self._clock_of_last_run = 0
        self._node: Origin | None = None
        self._node_began = 0
        self._counters = counters = PoolCounters()
        self._entries = entries = PoolEntries()
        self._work = WorkMeasure()
        self._ram = RamRoom(entries, counters, ram_bytes, self._give_back)
        self._room = DeviceRoom(entries, self._ram, counters, self._give_back, evicts_in_part=smart_memory)
        self._loader = PoolLoader(state, limits or Limits(), entries, self._room, self._ram, counters)
        self.before_eviction: Callable[[], bool] = lambda: False  # gives back other memory; True where there was some
        self.is_shared = False  # several runs use models at the same time, so that none can be measured by itself
        self.memory_savings = MemorySavings()
        self.notes: set[ReliefStep] = set()  # taken by the current node itself

    def _give_back(self) -> bool:
        return self.before_eviction()

    @property
    def state(self) -> VramState:
        return self._state

    def add(self, resident: Resident, role: str = "other", *, is_borrowed: bool = False) -> Residency:
        """Add a model, which stays as long as its handle is referenced.

        `is_borrowed`: its module belongs to others, and may exist longer.
        """
        entry_id = self._entries.next_id()
        handle = Residency(self, entry_id, resident)
        entry = PoolEntry(resident, weakref.ref(handle), role, self._node, is_borrowed=is_borrowed)
        self._entries.add(entry_id, entry, handle)
        return handle

    def keep(self, entry_id: int) -> None:
        self._entries[entry_id].is_kept = True

    def num_uses(self, entry_id: int) -> int:
        """Return the number of open uses of a model."""
        return self._entries[entry_id].uses

    def begin_node(self, node_id: str, class_type: str) -> None:
        """Attribute the models that are loaded and used from now on to this node."""
        self._node = Origin(node_id, class_type)
        self._node_began = self._clock

    def begin_work(self, device: DeviceMemory, working_bytes: int) -> None:
        """Set the working memory, besides weights, of all models in use on a device."""
        self._work.begin_work(working_bytes)
        with self._entries.busy():
            for entry in self._entries.in_use_on(device):
                entry.resident.layers.working_bytes = working_bytes

    def oom_context(self) -> OomContext:
        """Return the facts of the models used by the current node so far, for the choice of relief steps."""
        with self._entries.busy():
            used = [entry for entry in self._entries if entry.last_used > self._node_began]
            others = [entry for entry in self._entries if entry not in used]
            return OomContext(
                has_other_models=any(entry.can_give for entry in others),
                loads_in_part=self._state.loads_in_part and any(entry.is_movable for entry in used),
                used_vae=any(entry.role == "vae" for entry in used),
                used_attention=any(entry.role == "unet" for entry in used),
            )

    # --- use ---------------------------------------------------------------------------------------------------------

    @contextmanager
    def using(self, ids: Sequence[int], working_bytes: int) -> Iterator[None]:
        entries = [self._entries[entry_id] for entry_id in dict.fromkeys(ids)]
        kind, device = entries[0].role, entries[0].resident.device
        try:
            with self._entries.busy():
                self._begin_use(entries)
                num_uses = sum(entry.uses for entry in self._entries)
                is_outermost = device.has_own_memory and not self.is_shared and num_uses == len(entries)
                corrected_bytes = self._work.corrected(kind, working_bytes)
                self._loader.bring(entries, corrected_bytes, self.memory_savings.weights_share)
            before_bytes = self._work.begin_use(device) if is_outermost else None
            loads_before = self._counters.loads
            yield
            if before_bytes is not None and self._counters.loads == loads_before:  # else weights were measured too
                self._work.end_use(device, kind, working_bytes, before_bytes)
        finally:
            with self._entries.busy():
                for entry in entries:
                    entry.uses -= 1
                for entry in entries:
                    if not entry.uses:
                        entry.resident.end_use()
                    self._entries.close_streams(entry.resident)

    def _begin_use(self, entries: Sequence[PoolEntry]) -> None:
        for entry in entries:
            entry.uses += 1
            self._clock += 1
            entry.last_used = self._clock

    def make_room(self, device: DeviceMemory, least_bytes: int, best_bytes: int) -> None:
        """Free memory while models compute.

        Evict idle models until `best_bytes` are free, then offload blocks of models in use and free buffers until
        `least_bytes` are.
        """
        with self._entries.busy():
            self._room.make(device, least_bytes, best_bytes)

    def make_room_in_ram(self, num_bytes: int) -> None:
        """Drop idle models until `num_bytes` of RAM are free."""
        with self._entries.busy():
            self._ram.make(num_bytes, in_ram=True)

    # --- between uses ------------------------------------------------------------------------------------------------

    def unload_all(self, *, also_kept: bool = True) -> None:
        """Evict every model that is not in use from its device."""
        devices: dict[int, Any] = {}
        with self._entries.busy():
            for entry in self._entries:
                if not entry.uses and (also_kept or not entry.is_kept):
                    entry.resident.unload(into_ram=self._ram.has(entry.resident.loaded_bytes))
                    devices[id(entry.resident.device)] = entry.resident.device
        for device in devices.values():
            device.empty_cache()

    def drop_all(self) -> int:
        """Drop every idle model from RAM, as far as a file has it; return the bytes freed."""
        with self._entries.busy():
            return sum(self._ram.drop(entry) for entry in self._entries if not entry.uses)

    def after_run(self) -> None:
        """Clean up after a run: report leaks, and evict everything without smart memory."""
        self._node = None
        self._node_began = self._clock
        self.memory_savings = MemorySavings()
        self.notes.clear()  # of an interrupted node: they would be reported for the first node of the next run
        if not self._smart_memory:
            self.unload_all()
        with self._entries.busy():
            if self._clock != self._clock_of_last_run:
                self._clock_of_last_run = self._clock
                self._ram.make(0, in_ram=False)
            for entry in self._entries:
                self._entries.close_streams(entry.resident)  # of layers that were called while nothing was in use
        self.find_leaks()

    def find_leaks(self) -> list[str]:
        """Return, once, the models without handles that still exist, with the node that loaded each."""
        leaked = self._entries.leaked()
        self._counters.leaks += len(leaked)
        for text in leaked:
            log.warning("memory leak: %s is still referenced though nobody can use it any more", text)
        return leaked

    # --- figures -----------------------------------------------------------------------------------------------------

    def report(self) -> PoolReport:
        return PoolReport(
            tuple(entry.report() for entry in self._entries.snapshot() if entry.handle() is not None),
            self._counters.loads,
            self._counters.evictions,
            self._counters.evicted_bytes,
            self._counters.dropped,
            self._counters.leaks,
            dict(self._counters.load_seconds),
            dict(self._counters.uses),
        )

    def peak_bytes(self, device: DeviceMemory) -> int | None:
        """Return the most that was allocated at once on the device since the start; None where it does not count."""
        return self._work.peak_bytes(device)

    def check_integrity(self) -> None:
        """Raise AssertionError when figures contradict each other."""
        with self._entries.busy():
            is_used = any(entry.uses for entry in self._entries)
            for entry in self._entries:
                resident = entry.resident
                assert entry.uses >= 0, f"{resident.name} was released more often than used"
                assert 0 <= resident.loaded_bytes <= resident.size_bytes, f"{resident.name} miscounted"
                assert is_used or not resident.streams.buffers_bytes, "cast buffers that nobody uses"
                if not entry.uses:
                    resident.check_integrity()
