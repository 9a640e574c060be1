"""ModelPool: the sole holder of loaded models. It decides by `plan.py` who leaves, and carries that out.

Nodes hold `Residency` handles; a model leaves the pool when its last handle is gone.
"""

from __future__ import annotations

import gc
import itertools
import logging
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from engine.memory import machine_memory
from engine.memory.calibration import Calibration
from engine.memory.lanes import Lanes
from engine.memory.plan import Limits, Newcomer, Occupant, eviction_order, plan_residency
from engine.memory.relief import Economy, ReliefStep, Situation
from engine.memory.state import VramState

HANDLE_REFERENCES = 2  # what counts as a reference to a handle without any value holding it

log = logging.getLogger(__name__)


class DeviceMemory(Protocol):
    """What the pool asks of a device."""

    torch_name: str
    has_own_memory: bool

    def free_bytes(self) -> int: ...

    def empty_cache(self) -> None: ...

    def allocated_bytes(self) -> int | None: ...

    def peak_bytes(self) -> int | None: ...

    def reset_peak(self) -> None: ...


class Resident(Protocol):
    """What the pool keeps: something with a size that can be on a device, in part too, and can be patched."""

    name: str
    module: Any
    working_bytes: int
    can_leave: bool
    size_bytes: int
    fixed_bytes: int

    @property
    def device(self) -> Any: ...

    @property
    def lanes(self) -> Lanes: ...

    @property
    def load_device(self) -> str: ...

    @property
    def offload_device(self) -> str: ...

    @property
    def loaded_bytes(self) -> int: ...

    @property
    def block_bytes(self) -> int: ...

    @property
    def landing_bytes(self) -> int: ...

    @property
    def patching_bytes(self) -> int: ...

    @property
    def casts(self) -> bool: ...

    @property
    def more_bytes(self) -> int: ...

    @property
    def ram_bytes(self) -> int: ...

    @property
    def droppable_bytes(self) -> int: ...

    def load(self, room: int | None = None) -> None: ...

    def unload(self, num_bytes: int | None = None, *, into_ram: bool = True) -> int: ...

    def drop(self) -> int: ...

    def release(self) -> None: ...

    def set_compute_dtype(self, dtype: Any) -> None: ...

    @property
    def patches_now(self) -> tuple[Mapping[str, Sequence[Any]], object]: ...

    def patch(self, patches: Mapping[str, Sequence[Any]], patches_id: object) -> None: ...

    def want_patches(self, patches: Mapping[str, Sequence[Any]], patches_id: object) -> None: ...

    def apply_patches(self) -> None: ...

    def patch_hooks(self, patches: Mapping[str, Sequence[Any]], hooks_id: object, *, keep: bool) -> None: ...

    def hooking_bytes(self, patches: Mapping[str, Sequence[Any]], hooks_id: object) -> tuple[int, int]: ...

    def give(self, num_bytes: int) -> int: ...

    def undo_hooks(self) -> None: ...

    def original_weight(self, key: str) -> Any: ...

    def current_weight(self, key: str) -> Any: ...

    def check_integrity(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Origin:
    """The node that brought a model in."""

    node_id: str
    class_type: str

    def __str__(self) -> str:
        return f"{self.class_type} (node {self.node_id})"


@dataclass
class _Entry:
    resident: Resident
    handle: weakref.ref[Residency]
    role: str
    origin: Origin | None
    last_used: int = 0
    uses: int = 0  # open `in_use` blocks
    is_kept: bool = False  # leaves the device last, and never because nothing runs


@dataclass(frozen=True, slots=True)
class ModelReport:
    """One model: all its weights, those where it computes, what more it takes there, and what RAM its homes take.

    `on_device`: it computes on a device with memory of its own.
    """

    name: str
    role: str
    on_device: bool
    size_bytes: int
    loaded_bytes: int
    more_bytes: int
    ram_bytes: int
    is_kept: bool
    in_use: bool


@dataclass(frozen=True, slots=True)
class PoolReport:
    """Figures for metrics. Those that start with `num_` grow from the engine's start on."""

    models: tuple[ModelReport, ...]
    num_loads: int
    num_evictions: int
    evicted_bytes: int
    num_dropped: int
    num_leaks: int

    @property
    def num_models(self) -> int:
        return len(self.models)

    @property
    def size_bytes(self) -> int:
        return sum(item.size_bytes for item in self.models)

    @property
    def loaded_bytes(self) -> int:
        return sum(item.loaded_bytes for item in self.models)

    @property
    def device_bytes(self) -> int:
        """What models take on a device with memory of its own."""
        return sum(item.loaded_bytes + item.more_bytes for item in self.models if item.on_device)

    @property
    def ram_bytes(self) -> int:
        return sum(item.ram_bytes for item in self.models)


@dataclass
class _Counters:
    loads: int = 0
    evictions: int = 0
    evicted_bytes: int = 0
    dropped: int = 0
    leaks: int = 0


@dataclass
class _Watched:
    """Models whose handle is gone; their modules have to go as well."""

    modules: list[tuple[str, Origin | None, weakref.ref[Any]]] = field(default_factory=list)


class Residency:
    """A handle of one model in the pool."""

    def __init__(self, pool: ModelPool, entry_id: int, resident: Resident) -> None:
        self._pool = pool
        self._id = entry_id
        self._resident = resident

    @property
    def module(self) -> Any:
        return self._resident.module

    @property
    def load_device(self) -> str:
        return self._resident.load_device

    @property
    def offload_device(self) -> str:
        return self._resident.offload_device

    @property
    def size_bytes(self) -> int:
        return self._resident.size_bytes

    @property
    def loaded_bytes(self) -> int:
        return self._resident.loaded_bytes

    @property
    def ram_bytes(self) -> int:
        """Bytes of its weights in the machine's memory."""
        return self._resident.ram_bytes

    @property
    def economy(self) -> Economy:
        """How sparingly the node in hand has to run."""
        return self._pool.economy

    def free_bytes(self) -> float:
        """Bytes free on the load device now."""
        free: int = self._resident.device.free_bytes()
        return free

    def keep(self) -> None:
        """From now on this model leaves its device last, and never because nothing runs."""
        self._pool.keep(self._id)

    def begin_work(self, working_bytes: int) -> None:
        """While in use: what computes from here on takes so much memory besides weights."""
        self._pool.begin_work(self._resident.device, working_bytes)

    def note_split(self) -> None:
        """Tell that a batch was divided for want of memory."""
        self._pool.notes.add(ReliefStep.SPLIT_BATCH)

    def original_weight(self, key: str) -> Any:
        return self._resident.original_weight(key)

    def current_weight(self, key: str) -> Any:
        """With the patches of now, wherever it is: what the module shows is that only for blocks that are there."""
        return self._resident.current_weight(key)

    @contextmanager
    def in_use(
        self,
        *,
        working_bytes: int = 0,
        patches: Mapping[str, Sequence[Any]] | None = None,
        patches_id: object = None,
        together_with: Sequence[Residency] = (),
        compute_dtype: Any = None,
    ) -> Iterator[Any]:
        """While open, this model (with these patches) and the others can run on their device and none of them leaves.

        `compute_dtype` is what its weights are cast to while they compute, None what it was made for.
        """
        resident = self._resident
        is_outermost = not self._pool.num_uses(self._id)
        before = resident.patches_now
        if is_outermost:
            resident.set_compute_dtype(compute_dtype)
        resident.want_patches(patches or {}, patches_id)
        with self._pool.using([self._id, *(other._id for other in together_with)], working_bytes):
            try:
                yield resident.module
            finally:
                if is_outermost:
                    resident.undo_hooks()
                else:
                    resident.patch(*before)

    def patch_hooks(self, patches: Mapping[str, Sequence[Any]], hooks_id: object, *, keep: bool = False) -> None:
        """While in use: carry these patches on top of the others, instead of those of the last call.

        `hooks_id` names them, None being none at all; with `keep` they are remembered until the use ends.
        """
        self._pool.make_room(self._resident.device, *self._resident.hooking_bytes(patches, hooks_id))
        self._resident.patch_hooks(patches, hooks_id, keep=keep)


class ModelPool:
    """Models by handle. Used on the GPU thread only, but for `report`.

    `ram_bytes` gives how much RAM is free and how much there is.
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
        self._entries: dict[int, _Entry] = {}
        self._ids = itertools.count(1)
        self._clock = 0  # grows with every use of a model
        self._clock_of_last_run = 0
        self._node: Origin | None = None
        self._node_began = 0
        self._counters = _Counters()
        self._calibration = Calibration()
        self._peak_bytes = 0  # the most before a device's own count was begun anew
        self._begun_bytes = 0  # the largest work begun in the outermost use that is open
        self._watched = _Watched()
        self.economy = Economy()
        self.notes: set[ReliefStep] = set()  # taken by the node in hand itself

    @property
    def state(self) -> VramState:
        return self._state

    def add(self, resident: Resident, role: str = "other") -> Residency:
        """Take a model in. It stays as long as its handle is referenced."""
        entry_id = next(self._ids)
        handle = Residency(self, entry_id, resident)
        self._entries[entry_id] = _Entry(resident, weakref.ref(handle), role, self._node)
        weakref.finalize(handle, self._forget, entry_id)
        return handle

    def keep(self, entry_id: int) -> None:
        self._entries[entry_id].is_kept = True

    def num_uses(self, entry_id: int) -> int:
        """How many open uses a model has."""
        return self._entries[entry_id].uses

    def begin_node(self, node_id: str, class_type: str) -> None:
        """A node is about to run: models that come in are its, and it is charged with what it uses."""
        self._node = Origin(node_id, class_type)
        self._node_began = self._clock

    def begin_work(self, device: DeviceMemory, working_bytes: int) -> None:
        """What is in use on a device computes from here on in so much memory besides weights."""
        self._begun_bytes = max(self._begun_bytes, working_bytes)
        for entry in self._entries.values():
            if entry.uses and entry.resident.device is device:
                entry.resident.working_bytes = working_bytes

    def situation(self) -> Situation:
        """What the node in hand has used so far, for whoever has to find memory for it."""
        used = [entry for entry in self._entries.values() if entry.last_used > self._node_began]
        others = [entry for entry in self._entries.values() if entry not in used]
        return Situation(
            has_other_models=any(_can_give(entry.resident) for entry in others),
            loads_in_part=self._state.loads_in_part and any(_is_movable(entry.resident) for entry in used),
            used_vae=any(entry.role == "vae" for entry in used),
            used_attention=any(entry.role == "unet" for entry in used),
        )

    # --- use ---------------------------------------------------------------------------------------------------------

    @contextmanager
    def using(self, ids: Sequence[int], working_bytes: int) -> Iterator[None]:
        entries = [self._entries[entry_id] for entry_id in dict.fromkeys(ids)]
        for entry in entries:
            entry.uses += 1
            self._clock += 1
            entry.last_used = self._clock
        kind, device = entries[0].role, entries[0].resident.device
        is_outermost = device.has_own_memory and sum(entry.uses for entry in self._entries.values()) == len(entries)
        try:
            self._bring(entries, self._calibration.corrected(kind, working_bytes))
            before_bytes = self._measure_from_here(device) if is_outermost else None
            loads_before = self._counters.loads
            yield
            if before_bytes is not None and self._counters.loads == loads_before:  # else weights were measured too
                estimated_bytes = max(working_bytes, self._begun_bytes)
                self._calibration.measured(kind, estimated_bytes, (device.peak_bytes() or 0) - before_bytes)
        finally:
            for entry in entries:
                entry.uses -= 1
            for entry in entries:
                self._close_lanes(entry.resident)

    def _measure_from_here(self, device: DeviceMemory) -> int | None:
        """What is allocated now, to be compared with the most there will have been; None where nobody counts."""
        self._begun_bytes = 0
        self._peak_bytes = self.peak_bytes(device) or 0
        device.reset_peak()
        return device.allocated_bytes()

    def _bring(self, entries: Sequence[_Entry], working_bytes: int) -> None:
        devices = {id(entry.resident.device): entry.resident.device for entry in entries}
        for key, device in devices.items():
            coming = [entry for entry in entries if id(entry.resident.device) == key]
            for entry in coming:
                entry.resident.working_bytes = working_bytes
            coming_bytes = sum(_missing(entry.resident) for entry in coming) + working_bytes
            self._make_room_in_ram(coming_bytes, in_ram=not device.has_own_memory)
            if device.has_own_memory:
                self._bring_to_device(coming, device, working_bytes)
            else:
                self._bring_to_cpu(coming)

    def _bring_to_cpu(self, entries: Sequence[_Entry]) -> None:
        for entry in entries:
            if entry.resident.loaded_bytes < entry.resident.size_bytes:
                self._counters.loads += 1
                entry.resident.load()
            entry.resident.apply_patches()
            if entry.resident.casts:
                entry.resident.lanes.open(1, entry.resident.block_bytes)

    def _bring_to_device(self, entries: Sequence[_Entry], device: DeviceMemory, working_bytes: int) -> None:
        by_id = {entry_id: entry for entry_id, entry in self._entries.items() if entry in entries}
        lanes = entries[0].resident.lanes
        weights_share = self.economy.weights_share
        if self._state is VramState.NO_VRAM:
            weights_share = 0.0
        plan = plan_residency(
            [_newcomer(entry_id, entry.resident) for entry_id, entry in by_id.items()],
            self._occupants(device, entries),
            free_bytes=device.free_bytes() + lanes.buffers_bytes,
            working_bytes=working_bytes,
            limits=self._limits,
            max_buffers=lanes.max_buffers,
            in_part=self._state.loads_in_part,
            weights_share=weights_share,
        )
        for eviction in plan.evict:
            self._evict(self._entries[eviction.id], eviction.num_bytes)
        if plan.evict:
            device.empty_cache()
        growth = {key: plan.weights[key] - entry.resident.loaded_bytes for key, entry in by_id.items()}
        for key in sorted(by_id, key=lambda key: growth[key]):  # who has to give some back, first
            resident = by_id[key].resident
            self._counters.loads += resident.loaded_bytes < min(plan.weights[key], resident.size_bytes)
            resident.load(plan.weights[key])
        if plan.num_buffers:
            lanes.open(plan.num_buffers, plan.buffer_bytes)

    def make_room(self, device: DeviceMemory, least_bytes: int, best_bytes: int) -> None:
        """While models compute: idle ones leave until the best is free, blocks of those in use and buffers until the
        least is.
        """
        free_bytes = before_bytes = device.free_bytes() if best_bytes else 0
        if free_bytes >= best_bytes:
            return
        for occupant in eviction_order(self._occupants(device, ())):
            if free_bytes >= best_bytes:
                break
            self._evict(self._entries[occupant.id], best_bytes - free_bytes)
            free_bytes += occupant.loaded_bytes
        in_use = [entry.resident for entry in self._entries.values() if entry.uses and entry.resident.device is device]
        for resident in in_use:
            if free_bytes < least_bytes:
                free_bytes += resident.give(least_bytes - free_bytes)
        if in_use and free_bytes < least_bytes:
            free_bytes += in_use[0].lanes.give(least_bytes - free_bytes)
        if free_bytes > before_bytes:
            device.empty_cache()

    def _evict(self, entry: _Entry, num_bytes: int) -> None:
        in_part = self._smart_memory and num_bytes < entry.resident.loaded_bytes
        leaving_bytes = num_bytes if in_part else entry.resident.loaded_bytes
        left = entry.resident.unload(num_bytes if in_part else None, into_ram=self._ram_has_room(leaving_bytes))
        self._counters.evictions += 1
        self._counters.evicted_bytes += left
        log.debug("%s: %d bytes left the device", entry.resident.name, left)

    def _occupants(self, device: DeviceMemory, newcomers: Iterable[_Entry]) -> list[Occupant]:
        """Who may leave a device: whatever is on it and not in use."""
        staying = {id(entry) for entry in newcomers}
        return [
            _occupant(entry_id, entry)
            for entry_id, entry in self._entries.items()
            if id(entry) not in staying and entry.resident.device is device and _can_be_evicted(entry)
        ]

    def _close_lanes(self, resident: Resident) -> None:
        """Buffers go when nothing on their device is in use any more."""
        if not any(entry.uses for entry in self._entries.values() if entry.resident.lanes is resident.lanes):
            resident.lanes.close()

    # --- RAM ---------------------------------------------------------------------------------------------------------

    def make_room_in_ram(self, num_bytes: int) -> None:
        """So much is about to come to RAM."""
        self._make_room_in_ram(num_bytes, in_ram=True)

    def _make_room_in_ram(self, coming_bytes: int, *, in_ram: bool) -> None:
        """Models that are not in use leave RAM, to be read again, while it is short. `in_ram`: for what comes, too."""
        idle = {entry_id: entry for entry_id, entry in self._entries.items() if not entry.uses}
        if not idle:
            return
        missing = (coming_bytes if in_ram else 0) - self._ram_to_spare()
        if missing <= 0:
            return
        for occupant in eviction_order([_occupant(entry_id, entry) for entry_id, entry in idle.items()]):
            if missing <= 0:
                return
            missing -= self._drop(idle[occupant.id])

    def _ram_has_room(self, num_bytes: int) -> bool:
        """Whether so many bytes may come to RAM that could be read again instead."""
        return self._ram_to_spare() >= num_bytes

    def _ram_to_spare(self) -> int:
        """What is free above the floor; less than 0 while RAM is short."""
        return machine_memory.spare_bytes(*self._ram_bytes())

    def _drop(self, entry: _Entry) -> int:
        if not entry.resident.device.has_own_memory:
            entry.resident.unload()  # takes patches off, which would be lost
        dropped = entry.resident.drop()
        if dropped:
            self._counters.dropped += 1
            log.info("%s left RAM: %d MiB, to be read again", entry.resident.name, dropped >> 20)
        return dropped

    # --- between uses ------------------------------------------------------------------------------------------------

    def unload_all(self, *, also_kept: bool = True) -> None:
        """Every model that is not in use leaves its device."""
        devices: dict[int, Any] = {}
        for entry in list(self._entries.values()):
            if not entry.uses and (also_kept or not entry.is_kept):
                entry.resident.unload(into_ram=self._ram_has_room(entry.resident.loaded_bytes))
                devices[id(entry.resident.device)] = entry.resident.device
        for device in devices.values():
            device.empty_cache()

    def drop_all(self) -> int:
        """Every model that is not in use leaves RAM as well, as far as it can be read again. The bytes given back."""
        return sum(self._drop(entry) for entry in list(self._entries.values()) if not entry.uses)

    def after_run(self) -> None:
        """Without smart memory nothing stays on the device between runs. What should be gone is looked for."""
        self._node = None
        self._node_began = self._clock
        self.economy = Economy()
        self.notes.clear()  # of a node that was interrupted: the next run's first would be told to have taken them
        if not self._smart_memory:
            self.unload_all()
        if self._clock != self._clock_of_last_run:
            self._clock_of_last_run = self._clock
            self._make_room_in_ram(0, in_ram=False)
        self.find_leaks()

    def find_leaks(self) -> list[str]:
        """Models that are held by nobody but have not gone, with the node that brought each in. Told once."""
        if not any(module() is not None for _, _, module in self._watched.modules):
            self._watched.modules.clear()
            return []
        gc.collect()
        leaked = [
            f"{name}, from {origin or 'outside of a run'}"
            for name, origin, module in self._watched.modules
            if module() is not None
        ]
        self._watched.modules.clear()
        self._counters.leaks += len(leaked)
        for text in leaked:
            log.warning("memory leak: %s is still referenced though nobody can use it any more", text)
        return leaked

    def _forget(self, entry_id: int) -> None:
        entry = self._entries.pop(entry_id, None)
        if entry is not None:
            entry.resident.release()
            self._watched.modules.append((entry.resident.name, entry.origin, weakref.ref(entry.resident.module)))

    # --- figures -----------------------------------------------------------------------------------------------------

    def report(self) -> PoolReport:
        return PoolReport(
            tuple(_report(entry) for entry in list(self._entries.values())),
            self._counters.loads,
            self._counters.evictions,
            self._counters.evicted_bytes,
            self._counters.dropped,
            self._counters.leaks,
        )

    def peak_bytes(self, device: DeviceMemory) -> int | None:
        """The most that was allocated at once on the device where models compute; None where nobody counts.

        Since the engine's start, however often uses have measured meanwhile.
        """
        peak_bytes = device.peak_bytes()
        return None if peak_bytes is None else max(peak_bytes, self._peak_bytes)

    def check_integrity(self) -> None:
        """Raises AssertionError when figures contradict each other."""
        for entry in self._entries.values():
            resident = entry.resident
            assert entry.uses >= 0, f"{resident.name} was released more often than used"
            assert 0 <= resident.loaded_bytes <= resident.size_bytes, f"{resident.name} miscounted"
            if not entry.uses:
                resident.check_integrity()
        if not any(entry.uses for entry in self._entries.values()):
            for entry in self._entries.values():
                assert not entry.resident.lanes.buffers_bytes, "cast buffers that nobody uses"


def _newcomer(entry_id: int, resident: Resident) -> Newcomer:
    return Newcomer(
        entry_id,
        resident.size_bytes,
        resident.loaded_bytes,
        resident.fixed_bytes if resident.can_leave else resident.size_bytes,
        resident.block_bytes if resident.can_leave or resident.casts else 0,
        resident.casts,
        resident.landing_bytes,
        resident.patching_bytes,
    )


def _occupant(entry_id: int, entry: _Entry) -> Occupant:
    resident, handle = entry.resident, entry.handle()
    references = 0 if handle is None else sys.getrefcount(handle) - HANDLE_REFERENCES
    return Occupant(entry_id, resident.loaded_bytes, resident.size_bytes, entry.last_used, references, entry.is_kept)


def _can_be_evicted(entry: _Entry) -> bool:
    return not entry.uses and entry.resident.can_leave and entry.resident.loaded_bytes > 0


def _can_give(resident: Resident) -> bool:
    return (resident.can_leave and resident.loaded_bytes > 0) or resident.droppable_bytes > 0


def _is_movable(resident: Resident) -> bool:
    return resident.can_leave and resident.size_bytes > resident.fixed_bytes


def _missing(resident: Resident) -> int:
    return resident.size_bytes - resident.loaded_bytes


def _report(entry: _Entry) -> ModelReport:
    resident = entry.resident
    return ModelReport(
        resident.name,
        entry.role,
        resident.device.has_own_memory,
        resident.size_bytes,
        resident.loaded_bytes,
        resident.more_bytes,
        resident.ram_bytes,
        entry.is_kept,
        entry.uses > 0,
    )
