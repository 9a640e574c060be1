"""What has to leave the device before something else can come: pure arithmetic in bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Occupant:
    """A model on the device. `last_used` grows with every use; `references` are values that still point to it.

    `is_kept`: somebody asked for it to stay; it leaves after all others.
    """

    id: int
    loaded_bytes: int
    size_bytes: int
    last_used: int
    references: int = 1
    is_kept: bool = False


@dataclass(frozen=True, slots=True)
class ResidencyPlan:
    """`evict` in order; `missing_bytes` is what will still lack after it (0: it fits)."""

    evict: tuple[int, ...]
    missing_bytes: int


def plan_residency(
    wanted_bytes: int, working_bytes: int, free_bytes: int, occupants: Sequence[Occupant], reserve_bytes: int = 0
) -> ResidencyPlan:
    """Which occupants leave so that `wanted_bytes` of weights and `working_bytes` fit and `reserve_bytes` stay free.

    `occupants` are those that may leave. Those not kept first, among them the least recently used, then those
    off-loaded most already, then fewer references, then larger ones.
    """
    missing = wanted_bytes + working_bytes + reserve_bytes - free_bytes
    evict: list[int] = []
    order = sorted(
        occupants,
        key=lambda item: (
            item.is_kept,
            item.last_used,
            item.loaded_bytes - item.size_bytes,
            item.references,
            -item.size_bytes,
        ),
    )
    for occupant in order:
        if missing <= 0:
            break
        evict.append(occupant.id)
        missing -= occupant.loaded_bytes
    return ResidencyPlan(tuple(evict), max(0, missing))
