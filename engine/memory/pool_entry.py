"""One model in the pool: what is known of it besides its weights, and how the planner and the figures see it."""

from __future__ import annotations

import sys
import weakref
from dataclasses import dataclass

from engine.memory.plan import Newcomer, Occupant
from engine.memory.pool_report import ModelReport
from engine.memory.residency import Residency
from engine.memory.resident import Origin, Resident

HANDLE_REFERENCES = 2  # what counts as a reference to a handle without any value holding it


@dataclass(eq=False, slots=True)
class PoolEntry:
    """`last_used` grows with every use of any model, `uses` are the open ones. `is_kept`: it leaves the device last,
    and never because nothing runs.
    """

    resident: Resident
    handle: weakref.ref[Residency]
    role: str
    origin: Origin | None
    last_used: int = 0
    uses: int = 0
    is_kept: bool = False

    @property
    def missing_bytes(self) -> int:
        return self.resident.size_bytes - self.resident.loaded_bytes

    @property
    def can_be_evicted(self) -> bool:
        return not self.uses and self.resident.can_leave and self.resident.loaded_bytes > 0

    @property
    def can_give(self) -> bool:
        """Whether memory would come free if it left."""
        resident = self.resident
        return (resident.can_leave and resident.loaded_bytes > 0) or resident.droppable_bytes > 0

    @property
    def is_movable(self) -> bool:
        """Whether less of it could lie on the device while it runs."""
        return self.resident.can_leave and self.resident.size_bytes > self.resident.fixed_bytes

    def newcomer(self, entry_id: int) -> Newcomer:
        resident = self.resident
        return Newcomer(
            entry_id,
            resident.size_bytes,
            resident.loaded_bytes,
            resident.fixed_bytes if resident.can_leave else resident.size_bytes,
            resident.block_bytes if resident.can_leave or resident.casts else 0,
            resident.casts,
            resident.landing_bytes,
            resident.patching_bytes,
            resident.beside_bytes,
        )

    def occupant(self, entry_id: int) -> Occupant:
        handle, resident = self.handle(), self.resident
        references = 0 if handle is None else sys.getrefcount(handle) - HANDLE_REFERENCES
        return Occupant(entry_id, resident.loaded_bytes, resident.size_bytes, self.last_used, references, self.is_kept)

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
