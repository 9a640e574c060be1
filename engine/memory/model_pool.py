"""Pool that owns all loaded models. It evicts by the decisions of `plan.py`.

Nodes hold `Residency` handles; a model leaves the pool when its last handle is gone.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from engine.memory import machine_memory
from engine.memory.calibration import Calibration
from engine.memory.leaks import ReleasedModels
from engine.memory.plan import Limits, ResidencyPlan, ResidentModel, eviction_order, plan_residency
from engine.memory.pool_entry import PoolEntry
from engine.memory.pool_report import PoolCounters, PoolReport
from engine.memory.relief import MemorySavings, OomContext, ReliefStep
from engine.memory.residency import Residency
from engine.memory.resident import DeviceMemory, Origin, Resident
from engine.memory.state import VramState

log = logging.getLogger(__name__)


class ModelPool:
    """Loaded models by handle. Used on the GPU thread only, except `report`.

    `ram_bytes` returns the free and the total bytes of RAM.

    Python may finalise a handle at any point, within a loop over all models too, and on another thread when the cycle
    collector runs there: its model is only queued then, and removed when no operation of the pool is in progress.
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
        self._limits = limits or Limits()
        self._smart_memory = smart_memory
        self._ram_bytes = ram_bytes
        self._entries: dict[int, PoolEntry] = {}
        self._ids = itertools.count(1)
        self._ended: deque[int] = deque()  # ids of models whose handles are gone
        self._num_busy = 0  # operations in progress, during which no model may be removed
        self._thread = threading.get_ident()
        self._clock = 0  # grows with every use of a model
        self._clock_of_last_run = 0
        self._node: Origin | None = None
        self._node_began = 0
        self._counters = PoolCounters()
        self._calibration = Calibration()
        self._peak_bytes = 0  # the highest peak before the device's own count was last reset
        self._begun_bytes = 0  # the largest work begun in the outermost use that is open
        self._gone = ReleasedModels()
        self.before_eviction: Callable[[], bool] = lambda: False  # gives back other memory; True where there was some
        self.is_shared = False  # several runs use models at the same time, so that none can be measured by itself
        self.memory_savings = MemorySavings()
        self.notes: set[ReliefStep] = set()  # taken by the current node itself

    @property
    def state(self) -> VramState:
        return self._state

    def add(self, resident: Resident, role: str = "other", *, is_borrowed: bool = False) -> Residency:
        """Add a model, which stays as long as its handle is referenced.

        `is_borrowed`: its module belongs to others, and may exist longer.
        """
        entry_id = next(self._ids)
        handle = Residency(self, entry_id, resident)
        with self._busy():
            entry = PoolEntry(resident, weakref.ref(handle), role, self._node, is_borrowed=is_borrowed)
            self._entries[entry_id] = entry
        weakref.finalize(handle, self._end, entry_id)
        return handle

    @contextmanager
    def _busy(self) -> Iterator[None]:
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
        self._begun_bytes = max(self._begun_bytes, working_bytes)
        with self._busy():
            for entry in self._entries.values():
                if entry.uses and entry.resident.device is device:
                    entry.resident.working_bytes = working_bytes

    def oom_context(self) -> OomContext:
        """Return what the current node has used so far, for the choice of relief steps."""
        with self._busy():
            used = [entry for entry in self._entries.values() if entry.last_used > self._node_began]
            others = [entry for entry in self._entries.values() if entry not in used]
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
            with self._busy():
                self._begin_use(entries)
                num_uses = sum(entry.uses for entry in self._entries.values())
                is_outermost = device.has_own_memory and not self.is_shared and num_uses == len(entries)
                self._bring(entries, self._calibration.corrected(kind, working_bytes))
            before_bytes = self._measure_from_here(device) if is_outermost else None
            loads_before = self._counters.loads
            yield
            if before_bytes is not None and self._counters.loads == loads_before:  # else weights were measured too
                estimated_bytes = max(working_bytes, self._begun_bytes)
                self._calibration.measured(kind, estimated_bytes, (device.peak_bytes() or 0) - before_bytes)
        finally:
            with self._busy():
                for entry in entries:
                    entry.uses -= 1
                for entry in entries:
                    if not entry.uses:
                        entry.resident.end_use()
                    self._close_streams(entry.resident)

    def _begin_use(self, entries: Sequence[PoolEntry]) -> None:
        for entry in entries:
            entry.uses += 1
            self._clock += 1
            entry.last_used = self._clock

    def _measure_from_here(self, device: DeviceMemory) -> int | None:
        """Reset the peak count and return what is allocated now; None where the device does not count."""
        self._begun_bytes = 0
        self._peak_bytes = self.peak_bytes(device) or 0
        device.reset_peak()
        return device.allocated_bytes()

    def _bring(self, entries: Sequence[PoolEntry], working_bytes: int) -> None:
        devices = {id(entry.resident.device): entry.resident.device for entry in entries}
        for key, device in devices.items():
            coming = [entry for entry in entries if id(entry.resident.device) == key]
            for entry in coming:
                self._counters.uses[entry.weights_level] += 1
                entry.resident.working_bytes = working_bytes
            coming_bytes = sum(entry.missing_bytes for entry in coming) + working_bytes
            self._make_room_in_ram(coming_bytes, in_ram=not device.has_own_memory)
            if device.has_own_memory:
                self._bring_to_device(coming, device, working_bytes)
            else:
                self._bring_to_cpu(coming)

    def _bring_to_cpu(self, entries: Sequence[PoolEntry]) -> None:
        for entry in entries:
            if entry.resident.loaded_bytes < entry.resident.size_bytes:
                self._load(entry)
            entry.resident.apply_patches()
            if entry.resident.casts:
                entry.resident.streams.open(1, entry.resident.block_bytes)

    def _bring_to_device(self, entries: Sequence[PoolEntry], device: DeviceMemory, working_bytes: int) -> None:
        by_id = {entry_id: entry for entry_id, entry in self._entries.items() if entry in entries}
        streams = entries[0].resident.streams
        weights_share = self.memory_savings.weights_share
        if self._state is VramState.NO_VRAM:
            weights_share = 0.0

        def planned() -> ResidencyPlan:
            return plan_residency(
                [entry.load_request(entry_id) for entry_id, entry in by_id.items()],
                self._resident_models(device, entries),
                free_bytes=device.free_bytes() + streams.buffers_bytes,
                working_bytes=working_bytes,
                limits=self._limits,
                max_buffers=streams.max_buffers,
                open_buffers=(streams.num_open, streams.largest_buffer_bytes),
                in_part=self._state.loads_in_part,
                weights_share=weights_share,
            )

        plan = planned()
        is_short = (
            plan.evict
            or plan.missing_bytes
            or any(plan.weights[key] < entry.resident.size_bytes for key, entry in by_id.items())
        )
        if is_short and self._other_memory_was_given_back(device):
            plan = planned()
        for eviction in plan.evict:
            self._evict(self._entries[eviction.id], eviction.num_bytes)
        given_bytes = self._offload_in_use(device, entries, plan.missing_bytes)
        if plan.evict or given_bytes:
            device.empty_cache()
        growth = {key: plan.weights[key] - entry.resident.loaded_bytes for key, entry in by_id.items()}
        for key in sorted(by_id, key=lambda key: growth[key]):  # first those that have to shrink
            resident = by_id[key].resident
            if resident.loaded_bytes < min(plan.weights[key], resident.size_bytes):
                self._load(by_id[key], plan.weights[key])
            else:
                resident.load(plan.weights[key])
        if plan.num_buffers:
            streams.open(plan.num_buffers, plan.buffer_bytes)

    def _load(self, entry: PoolEntry, room: int | None = None) -> None:
        """Load weights, and count the load with its duration."""
        began_seconds = time.monotonic()
        entry.resident.load(room)
        self._counters.loads += 1
        by_role = self._counters.load_seconds
        by_role.get(entry.role, by_role["other"]).add(time.monotonic() - began_seconds)

    def _offload_in_use(self, device: DeviceMemory, besides: Sequence[PoolEntry], num_bytes: int) -> int:
        """Offload blocks of other models in use, which are streamed from then on; return the bytes freed."""
        given_bytes = 0
        for entry in self._entries.values():
            is_other = entry.uses > 0 and entry.resident.device is device and entry not in besides
            if is_other and given_bytes < num_bytes:
                given_bytes += entry.resident.offload_in_use(num_bytes - given_bytes)
        return given_bytes

    def make_room(self, device: DeviceMemory, least_bytes: int, best_bytes: int) -> None:
        """Free memory while models compute.

        Evict idle models until `best_bytes` are free, then offload blocks of models in use and free buffers until
        `least_bytes` are.
        """
        with self._busy():
            self._make_room(device, least_bytes, best_bytes)

    def _make_room(self, device: DeviceMemory, least_bytes: int, best_bytes: int) -> None:
        free_bytes = before_bytes = device.free_bytes() if best_bytes else 0
        if free_bytes < best_bytes and self._other_memory_was_given_back(device):
            free_bytes = before_bytes = device.free_bytes()
        if free_bytes >= best_bytes:
            return
        for resident_model in eviction_order(self._resident_models(device, ())):
            if free_bytes >= best_bytes:
                break
            self._evict(self._entries[resident_model.id], best_bytes - free_bytes)
            free_bytes += resident_model.loaded_bytes
        free_bytes += self._offload_in_use(device, (), least_bytes - free_bytes)
        in_use = [entry.resident for entry in self._entries.values() if entry.uses and entry.resident.device is device]
        if in_use and free_bytes < least_bytes:
            free_bytes += in_use[0].streams.shrink(least_bytes - free_bytes)
        if free_bytes > before_bytes:
            device.empty_cache()

    def _other_memory_was_given_back(self, device: DeviceMemory) -> bool:
        """Let those give memory back who hold it between runs and can do without; return True where some did."""
        was_some = self.before_eviction()
        if was_some:
            device.empty_cache()
        return was_some

    def _evict(self, entry: PoolEntry, num_bytes: int) -> None:
        in_part = self._smart_memory and num_bytes < entry.resident.loaded_bytes
        leaving_bytes = num_bytes if in_part else entry.resident.loaded_bytes
        left = entry.resident.unload(num_bytes if in_part else None, into_ram=self._ram_has_room(leaving_bytes))
        self._counters.evictions += 1
        self._counters.evicted_bytes += left
        log.debug("%s: %d bytes left the device", entry.resident.name, left)

    def _resident_models(self, device: DeviceMemory, requests: Iterable[PoolEntry]) -> list[ResidentModel]:
        """Return the models that may be evicted from a device: those on it that are not in use."""
        staying = {id(entry) for entry in requests}
        return [
            entry.resident_model(entry_id)
            for entry_id, entry in self._entries.items()
            if id(entry) not in staying and entry.resident.device is device and entry.can_be_evicted
        ]

    def _close_streams(self, resident: Resident) -> None:
        """Free the buffers of a device when nothing on it is in use any more."""
        if not any(entry.uses for entry in self._entries.values() if entry.resident.streams is resident.streams):
            resident.streams.close()

    # --- RAM ---------------------------------------------------------------------------------------------------------

    def make_room_in_ram(self, num_bytes: int) -> None:
        """Drop idle models until `num_bytes` of RAM are free."""
        with self._busy():
            self._make_room_in_ram(num_bytes, in_ram=True)

    def _make_room_in_ram(self, coming_bytes: int, *, in_ram: bool) -> None:
        """Drop idle models from RAM, to be read again, while it is short.

        `in_ram`: the coming bytes are allocated in RAM too.
        """
        idle = {entry_id: entry for entry_id, entry in self._entries.items() if not entry.uses}
        if not idle:
            return
        missing = (coming_bytes if in_ram else 0) - self._ram_to_spare()
        if missing > 0 and self.before_eviction():
            missing = (coming_bytes if in_ram else 0) - self._ram_to_spare()
        if missing <= 0:
            return
        for resident_model in eviction_order([entry.resident_model(entry_id) for entry_id, entry in idle.items()]):
            if missing <= 0:
                return
            missing -= self._drop(idle[resident_model.id])

    def _ram_has_room(self, num_bytes: int) -> bool:
        """Return True where that much RAM may be taken for copies that a file has as well."""
        return self._ram_to_spare() >= num_bytes

    def _ram_to_spare(self) -> int:
        """Return the free RAM above the floor; negative while RAM is short."""
        return machine_memory.spare_bytes(*self._ram_bytes())

    def _drop(self, entry: PoolEntry) -> int:
        if not entry.resident.device.has_own_memory:
            entry.resident.unload()  # undoes patches, which would be lost
        dropped = entry.resident.drop()
        if dropped:
            self._counters.dropped += 1
            log.info("%s left RAM: %d MiB, to be read again", entry.resident.name, dropped >> 20)
        return dropped

    # --- between uses ------------------------------------------------------------------------------------------------

    def unload_all(self, *, also_kept: bool = True) -> None:
        """Evict every model that is not in use from its device."""
        devices: dict[int, Any] = {}
        with self._busy():
            for entry in self._entries.values():
                if not entry.uses and (also_kept or not entry.is_kept):
                    entry.resident.unload(into_ram=self._ram_has_room(entry.resident.loaded_bytes))
                    devices[id(entry.resident.device)] = entry.resident.device
        for device in devices.values():
            device.empty_cache()

    def drop_all(self) -> int:
        """Drop every idle model from RAM, as far as a file has it; return the bytes freed."""
        with self._busy():
            return sum(self._drop(entry) for entry in self._entries.values() if not entry.uses)

    def after_run(self) -> None:
        """Clean up after a run: report leaks, and evict everything without smart memory."""
        self._node = None
        self._node_began = self._clock
        self.memory_savings = MemorySavings()
        self.notes.clear()  # of an interrupted node: they would be reported for the first node of the next run
        if not self._smart_memory:
            self.unload_all()
        with self._busy():
            if self._clock != self._clock_of_last_run:
                self._clock_of_last_run = self._clock
                self._make_room_in_ram(0, in_ram=False)
            for entry in self._entries.values():
                self._close_streams(entry.resident)  # of layers that were called while nothing was in use
        self.find_leaks()

    def find_leaks(self) -> list[str]:
        """Return, once, the models without handles that still exist, with the node that loaded each."""
        leaked = self._gone.leaked()
        self._counters.leaks += len(leaked)
        for text in leaked:
            log.warning("memory leak: %s is still referenced though nobody can use it any more", text)
        return leaked

    # --- figures -----------------------------------------------------------------------------------------------------

    def report(self) -> PoolReport:
        return PoolReport(
            tuple(entry.report() for entry in list(self._entries.values()) if entry.handle() is not None),
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
        peak_bytes = device.peak_bytes()
        return None if peak_bytes is None else max(peak_bytes, self._peak_bytes)

    def check_integrity(self) -> None:
        """Raise AssertionError when figures contradict each other."""
        with self._busy():
            is_used = any(entry.uses for entry in self._entries.values())
            for entry in self._entries.values():
                resident = entry.resident
                assert entry.uses >= 0, f"{resident.name} was released more often than used"
                assert 0 <= resident.loaded_bytes <= resident.size_bytes, f"{resident.name} miscounted"
                assert is_used or not resident.streams.buffers_bytes, "cast buffers that nobody uses"
                if not entry.uses:
                    resident.check_integrity()
