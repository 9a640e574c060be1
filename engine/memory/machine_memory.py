"""How much memory this process may still take: what its control groups leave of the machine's.

Read from the kernel's files each time; nothing is kept. Page cache that the kernel can drop counts as free, otherwise
a checkpoint that was read once would look like memory in use.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from pathlib import Path

from engine.memory.control_groups import control_groups

NO_LIMIT_BYTES = 1 << 60  # version 1 writes a huge number for "no limit"
FLOOR_SHARE = 0.1  # of RAM: what models leave to everything else
MOST_FLOOR_BYTES = 2 << 30


def spare_bytes(available: int, total: int) -> int:
    """What is available above the floor that models leave free; less than 0 while RAM is short."""
    return available - min(MOST_FLOOR_BYTES, int(total * FLOOR_SHARE))


def available_bytes(root: Path = Path("/")) -> int:
    """The least that the machine and every control group around the process can still give.

    `root` is where `proc` and `sys` are. 0 when the kernel tells nothing at all.
    """
    machine = meminfo_bytes("MemAvailable", root)
    return max(0, min([*([] if machine is None else [machine]), *_left_in_groups(root)], default=0))


def total_bytes(root: Path = Path("/")) -> int:
    """What the process could use if it were alone: the machine's memory, or a control group's lower limit."""
    machine = meminfo_bytes("MemTotal", root)
    limits = [limit for _, limit in _limits(root)]
    return min([*([] if machine is None else [machine]), *limits], default=0)


def meminfo_bytes(name: str, root: Path = Path("/")) -> int | None:
    """One figure of /proc/meminfo; None where there is none."""
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:")), None)


def give_heap_back() -> None:
    """What the process's heap holds without using goes back to the system, where the C library can do that (glibc).

    Else it keeps what many small tensors took for as long as it runs.
    """
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)


def _left_in_groups(root: Path) -> Iterator[int]:
    for folder, limit in _limits(root):
        used = _number(folder / "memory.current") or _number(folder / "memory.usage_in_bytes")
        if used is not None:
            yield limit - used + _droppable_bytes(folder)


def _limits(root: Path) -> Iterator[tuple[Path, int]]:
    """Every memory limit on the process, with the folder of its group; version 2 and version 1."""
    for folder in control_groups(root, "memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            limit = _number(folder / name)
            if limit is not None and limit < NO_LIMIT_BYTES:
                yield folder, limit


def _droppable_bytes(folder: Path) -> int:
    """Pages of files, those used again too: the kernel drops them before it ends a process of the group. A checkpoint
    that was read twice is `active`, and would look like memory in use.
    """
    try:
        fields = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return 0
    return sum(
        int(fields.get(f"total_{name}", fields.get(name, 0)))  # with `total_`: of version 1, inner groups counted
        for name in ("inactive_file", "active_file")
    )


def _number(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
