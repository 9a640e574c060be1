"""ModelPool: the sole holder of loaded models. It decides by `plan.py` who leaves, and carries that out.

Nodes hold `Residency` handles; a model leaves the pool when its last handle is gone.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from engine.memory.plan import Occupant, plan_residency
from engine.memory.state import VramState

MIB = 1024 * 1024
DEFAULT_RESERVE_BYTES = 400 * MIB


class Resident(Protocol):
    """What the pool keeps: something with a size that can be in two places and can be patched."""

    name: str
    module: Any
    load_device: str
    offload_device: str
    size_bytes: int

    @property
    def loaded_bytes(self) -> int: ...

    def load(self) -> None: ...

    def unload(self) -> None: ...

    def patch(self, patches: Mapping[str, Sequence[Any]], patches_id: object) -> None: ...

    def patch_hooks(self, patches: Mapping[str, Sequence[Any]], hooks_id: object, *, keep: bool) -> None: ...

    def undo_hooks(self) -> None: ...

    def original_weight(self, key: str) -> Any: ...


class DeviceMemory(Protocol):
    """What the pool asks of a device (`device.py`, or a simulated one)."""

    def free_bytes(self, device: str) -> int: ...

    def empty_cache(self, device: str) -> None: ...


@dataclass
class _Entry:
    resident: Resident
    last_used: int = 0
    uses: int = 0  # open `in_use` blocks
    is_kept: bool = False  # leaves the device last, and never because nothing runs


@dataclass(frozen=True, slots=True)
class PoolReport:
    """Figures for metrics: models, bytes of all their weights, bytes on their load devices."""

    num_models: int
    size_bytes: int
    loaded_bytes: int


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

    def free_bytes(self) -> float:
        """Bytes free on the load device now."""
        return self._pool.free_bytes(self.load_device)

    def keep(self) -> None:
        """From now on this model leaves its device last, and never because nothing runs."""
        self._pool.keep(self._id)

    def original_weight(self, key: str) -> Any:
        return self._resident.original_weight(key)

    @contextmanager
    def in_use(
        self,
        *,
        working_bytes: int = 0,
        patches: Mapping[str, Sequence[Any]] | None = None,
        patches_id: object = None,
        together_with: Sequence[Residency] = (),
    ) -> Iterator[Any]:
        """While open, this model (with these patches) and the others are on their device and none of them leaves."""
        with self._pool.using([self._id, *(other._id for other in together_with)], working_bytes):
            self._resident.patch(patches or {}, patches_id)
            try:
                yield self._resident.module
            finally:
                if self._pool.num_uses(self._id) == 1:
                    self._resident.undo_hooks()

    def patch_hooks(self, patches: Mapping[str, Sequence[Any]], hooks_id: object, *, keep: bool = False) -> None:
        """While in use: carry these patches on top of the others, instead of those of the last call.

        `hooks_id` names them, None being none at all; with `keep` they are remembered until the use ends.
        """
        self._resident.patch_hooks(patches, hooks_id, keep=keep)


class ModelPool:
    """Models by handle. Used on the GPU thread only."""

    def __init__(
        self,
        memory: DeviceMemory,
        state: VramState,
        *,
        reserve_bytes: int = DEFAULT_RESERVE_BYTES,
        smart_memory: bool = True,
    ) -> None:
        self._memory = memory
        self._state = state
        self._reserve_bytes = reserve_bytes
        self._smart_memory = smart_memory
        self._entries: dict[int, _Entry] = {}
        self._ids = itertools.count(1)
        self._clock = itertools.count(1)

    @property
    def state(self) -> VramState:
        return self._state

    def add(self, resident: Resident) -> Residency:
        """Take a model in. It stays as long as its handle is referenced."""
        entry_id = next(self._ids)
        handle = Residency(self, entry_id, resident)
        self._entries[entry_id] = _Entry(resident)
        weakref.finalize(handle, self._entries.pop, entry_id, None)
        return handle

    def free_bytes(self, device: str) -> int:
        return self._memory.free_bytes(device)

    def keep(self, entry_id: int) -> None:
        self._entries[entry_id].is_kept = True

    def num_uses(self, entry_id: int) -> int:
        """How many open uses a model has."""
        return self._entries[entry_id].uses

    @contextmanager
    def using(self, ids: Sequence[int], working_bytes: int) -> Iterator[None]:
        entries = [self._entries[entry_id] for entry_id in dict.fromkeys(ids)]
        self._make_room(entries, working_bytes)
        for entry in entries:
            entry.uses += 1
            entry.last_used = next(self._clock)
        try:
            for entry in entries:
                entry.resident.load()
            yield
        finally:
            for entry in entries:
                entry.uses -= 1

    def _make_room(self, entries: Sequence[_Entry], working_bytes: int) -> None:
        if self._state in (VramState.DISABLED, VramState.GPU_ONLY):
            return
        device = entries[0].resident.load_device
        wanted = sum(entry.resident.size_bytes - entry.resident.loaded_bytes for entry in entries)
        others = [
            Occupant(
                entry_id,
                entry.resident.loaded_bytes,
                entry.resident.size_bytes,
                entry.last_used,
                is_kept=entry.is_kept,
            )
            for entry_id, entry in self._entries.items()
            if entry not in entries and not entry.uses and entry.resident.loaded_bytes
        ]
        plan = plan_residency(wanted, working_bytes, self.free_bytes(device), others, self._reserve_bytes)
        for entry_id in plan.evict:
            self._entries[entry_id].resident.unload()
        if plan.evict:
            self._memory.empty_cache(device)

    def unload_all(self) -> None:
        """Every model that is not in use leaves its device."""
        devices = set()
        for entry in list(self._entries.values()):
            if not entry.uses:
                entry.resident.unload()
                devices.add(entry.resident.load_device)
        for device in devices:
            self._memory.empty_cache(device)

    def after_run(self) -> None:
        """Without smart memory nothing stays on the device between runs."""
        if not self._smart_memory:
            self.unload_all()

    def report(self) -> PoolReport:
        residents = [entry.resident for entry in self._entries.values()]
        return PoolReport(
            num_models=len(residents),
            size_bytes=sum(item.size_bytes for item in residents),
            loaded_bytes=sum(item.loaded_bytes for item in residents),
        )

    def check_integrity(self) -> None:
        """Raises AssertionError when figures contradict each other."""
        for entry in self._entries.values():
            assert entry.uses >= 0, f"{entry.resident.name} was released more often than used"
            assert 0 <= entry.resident.loaded_bytes <= entry.resident.size_bytes, f"{entry.resident.name} miscounted"
