"""Processor time of the machine and of processes, from the kernel's files. `root` is where `proc` is."""

from __future__ import annotations

import os
from pathlib import Path

from darkroom.host.control_groups import ROOT

IDLE_FIELDS = (3, 4)  # of the first line of /proc/stat: idle, and waiting for the disk


def busy_seconds(root: Path = ROOT) -> tuple[float, float] | None:
    """Return the busy and the idle seconds of all cores since the boot; None where the kernel tells nothing."""
    try:
        first = (root / "proc/stat").read_text().split("\n", 1)[0]
        ticks = [int(field) for field in first.split()[1:9]]  # the rest, guests, is counted in them already
    except (OSError, ValueError):
        return None
    idle = sum(ticks[index] for index in IDLE_FIELDS)
    return (sum(ticks) - idle) / _ticks_per_second(), idle / _ticks_per_second()


def process_seconds(pid: int, root: Path = ROOT) -> float | None:
    """Return the processor time of a process, its threads included; None when it has ended."""
    try:
        # The program's name is in brackets and may contain spaces; times are the 12th and 13th fields after it.
        fields = (root / "proc" / str(pid) / "stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _ticks_per_second()
    except (OSError, ValueError, IndexError):
        return None


def _ticks_per_second() -> int:
    return os.sysconf("SC_CLK_TCK")
