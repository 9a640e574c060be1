"""Memory that this process may still take: the machine's, within the limits of its control groups (cgroups).

0 instead of None where the kernel tells nothing: without a figure nothing more is kept.
"""

from __future__ import annotations

from pathlib import Path

from darkroom.host import memory
from darkroom.host.control_groups import ROOT

FLOOR_SHARE = 0.1  # of RAM: what models leave to everything else
MAX_FLOOR_BYTES = 2 << 30


def spare_bytes(available: int, total: int) -> int:
    """Return the available bytes above the floor that models leave free; negative while RAM is short."""
    return available - min(MAX_FLOOR_BYTES, int(total * FLOOR_SHARE))


def available_bytes(root: Path = ROOT) -> int:
    """Return the least that the machine and every control group around the process can still give.

    `root` is the folder of `proc` and `sys`. 0 where the kernel reports nothing.
    """
    return memory.available_bytes(root) or 0


def total_bytes(root: Path = ROOT) -> int:
    """Return the machine's memory, or the lowest limit of a control group."""
    return memory.total_bytes(root) or 0
