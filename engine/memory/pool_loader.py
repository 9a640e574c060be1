"""Bringing of weights to where models compute."""

from __future__ import annotations

import time
from collections.abc import Sequence

from darkroom.engine.memory.device_room import DeviceRoom
from darkroom.engine.memory.plan import Limits, ResidencyPlan, plan_residency
from darkroom.engine.memory.pool_entries import PoolEntries
from darkroom.engine.memory.pool_entry import PoolEntry
from darkroom.engine.memory.pool_report import PoolCounters
from darkroom.engine.memory.ram_room import RamRoom
from darkroom.engine.memory.resident import DeviceMemory
from darkroom.engine.memory.state import VramState


class PoolLoader:
    """Loads the models of a use, as far as the plan allows, and makes the room that it asks for."""

    def __init__(
        self,
        state: VramState,
        limits: Limits,
        entries: PoolEntries,
        room: DeviceRoom,
        ram: RamRoom,
        counters: PoolCounters,
    ) -> None:
        self._state = state
        self._limits = limits
        self._entries = entries
        self._room = room
        self._ram = ram
        self._counters = counters

    def bring(self, entries: Sequence[PoolEntry], working_bytes: int, weights_share: float) -> None:
        """Bring models that are about to compute with `working_bytes`.

        `weights_share` is the share of the room that weights may take.
        """
        devices = {id(entry.resident.device): entry.resident.device for entry in entries}
        for key, device in devices.items():
            coming = [entry for entry in entries if id(entry.resident.device) == key]
            for entry in coming:
                self._counters.uses[entry.weights_level] += 1
                entry.resident.layers.working_bytes = working_bytes
            coming_bytes = sum(entry.missing_bytes for entry in coming) + working_bytes
            self._ram.make(coming_bytes, in_ram=not device.has_own_memory)
            if device.has_own_memory:
                share = 0.0 if self._state is VramState.NO_VRAM else weights_share
                self._bring_to_device(coming, device, working_bytes, share)
            else:
                self._bring_to_cpu(coming)

    def _bring_to_cpu(self, entries: Sequence[PoolEntry]) -> None:
        for entry in entries:
            if entry.resident.loaded_bytes < entry.resident.size_bytes:
                self._load(entry)
            entry.resident.patches.apply()
            if entry.resident.layers.casts:
                entry.resident.streams.open(1, entry.resident.layers.block_bytes)

    def _bring_to_device(
        self, entries: Sequence[PoolEntry], device: DeviceMemory, working_bytes: int, weights_share: float
    ) -> None:
        by_id = self._entries.by_id(entries)
        streams = entries[0].resident.streams

        def planned() -> ResidencyPlan:
            return plan_residency(
                [entry.load_request(entry_id) for entry_id, entry in by_id.items()],
                self._entries.evictable(device, entries),
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
        if is_short and self._room.other_memory_was_given_back(device):
            plan = planned()
        for eviction in plan.evict:
            self._room.evict(self._entries[eviction.id], eviction.num_bytes)
        given_bytes = self._room.offload_in_use(device, entries, plan.missing_bytes)
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
