"""How much memory this process may still take: what its control groups leave of the machine's.

0 instead of None where the kernel tells nothing: without a figure nothing more is kept.
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

from machine import memory
from machine.control_groups import ROOT

FLOOR_SHARE = 0.1  # of RAM: what models leave to everything else
MOST_FLOOR_BYTES = 2 << 30


def spare_bytes(available: int, total: int) -> int:
    """What is available above the floor that models leave free; less than 0 while RAM is short."""
    return available - min(MOST_FLOOR_BYTES, int(total * FLOOR_SHARE))


def available_bytes(root: Path = ROOT) -> int:
    """The least that the machine and every control group around the process can still give.

    `root` is where `proc` and `sys` are. 0 when the kernel tells nothing at all.
    """
    return memory.available_bytes(root) or 0


def total_bytes(root: Path = ROOT) -> int:
    """What the process could use if it were alone: the machine's memory, or a control group's lower limit."""
    return memory.total_bytes(root) or 0


def give_heap_back() -> None:
    """What the process's heap holds without using goes back to the system, where the C library can do that (glibc).

    Else it keeps what many small tensors took for as long as it runs.
    """
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
