"""Entry of one model in the pool: its uses and references, and its view for planner and figures."""

from __future__ import annotations

import sys
import weakref
from dataclasses import dataclass

from darkroom.engine.memory.plan import LoadRequest, ResidentModel
from darkroom.engine.memory.pool_report import ModelReport, WeightsLevel
from darkroom.engine.memory.residency import Residency
from darkroom.engine.memory.resident import Origin, Resident

HANDLE_REFERENCES = 2  # references that `getrefcount` counts without any value holding the handle


@dataclass(eq=False, slots=True)
class PoolEntry:
    """Entry of one model. `last_used` grows with every use of any model, `uses` are the open ones.

    `is_kept`: it is evicted last, and never for being idle. `is_borrowed`: its module belongs to others.
    """

    resident: Resident
    handle: weakref.ref[Residency]
    role: str
    origin: Origin | None
    last_used: int = 0
    uses: int = 0
    is_kept: bool = False
    is_borrowed: bool = False

    @property
    def missing_bytes(self) -> int:
        return self.resident.size_bytes - self.resident.loaded_bytes

    @property
    def weights_level(self) -> WeightsLevel:
        """The slowest place that weights have to come from before the next use."""
        if not self.missing_bytes:
            return "device"
        return "ram" if self.resident.ram_bytes else "file"

    @property
    def can_be_evicted(self) -> bool:
        return not self.uses and self.resident.can_leave and self.resident.loaded_bytes > 0

    @property
    def can_give(self) -> bool:
        """True where evicting it would free memory."""
        resident = self.resident
        return (resident.can_leave and resident.loaded_bytes > 0) or resident.droppable_bytes > 0

    @property
    def is_movable(self) -> bool:
        """True where less of it could be on the device while it runs."""
        return self.resident.can_leave and self.resident.size_bytes > self.resident.fixed_bytes

    def load_request(self, entry_id: int) -> LoadRequest:
        resident = self.resident
        return LoadRequest(
            entry_id,
            resident.size_bytes,
            resident.loaded_bytes,
            resident.fixed_bytes if resident.can_leave else resident.size_bytes,
            resident.layers.block_bytes if resident.can_leave or resident.layers.casts else 0,
            resident.layers.casts,
            resident.conversion_bytes,
            resident.patches.room_bytes,
            resident.patched_copy_bytes,
        )

    def resident_model(self, entry_id: int) -> ResidentModel:
        handle, resident = self.handle(), self.resident
        references = 0 if handle is None else sys.getrefcount(handle) - HANDLE_REFERENCES
        return ResidentModel(
            entry_id, resident.loaded_bytes, resident.size_bytes, self.last_used, references, self.is_kept
        )

    def report(self) -> ModelReport:
        resident = self.resident
        return ModelReport(
            resident.name,
            self.role,
            resident.device.has_own_memory,
            resident.size_bytes,
            resident.loaded_bytes,
            resident.more_bytes,
            resident.ram_bytes,
            self.is_kept,
            self.uses > 0,
        )
