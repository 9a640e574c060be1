"""Memory of one device for two engines: decision whether both fit by their measured needs. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MARGIN = 0.05
"""Share of the device that stays free: kernels and fragments of both processes."""

UNKNOWN_SHARE = 0.5
"""Share of the device that an engine is taken to need before its first job was measured."""


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """Memory of an engine's device: all of it, and what this engine's process holds there, in bytes."""

    total_bytes: int
    held_bytes: int


def device_use(stats: Mapping[str, Any], process_bytes: int | None) -> DeviceUse | None:
    """Return the use of an engine's first device from its `/system_stats`; None where it reports none.

    On a processor the device is the machine's memory, of which the process holds `process_bytes`.
    """
    devices = stats.get("devices")
    first = devices[0] if isinstance(devices, list) and devices and isinstance(devices[0], Mapping) else {}
    total, held = first.get("vram_total"), first.get("torch_vram_total")
    if first.get("type") == "cpu":
        held = process_bytes
    if not isinstance(total, int) or not isinstance(held, int) or total <= 0:
        return None
    return DeviceUse(total, held)


def may_stay(held_bytes: int, needed_bytes: int | None, total_bytes: int) -> bool:
    """Return True if what one engine holds may stay while the other one runs a job.

    `needed_bytes` is the most that the other one has been measured to hold; None: it has not run yet.

    >>> may_stay(10, 80, 100), may_stay(20, 80, 100), may_stay(40, None, 100)
    (True, False, True)
    """
    needed = total_bytes * UNKNOWN_SHARE if needed_bytes is None else needed_bytes
    return held_bytes + needed <= total_bytes * (1 - MARGIN)
