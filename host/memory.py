"""Memory of the machine and of the control groups around this process.

Read from the kernel's files each time; nothing is kept. Page cache that the kernel can drop counts as free, pages that
were used again (`active_file`) as well: a checkpoint that was read twice would look like memory in use otherwise.
`root` is where `proc` and `sys` are.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from darkroom.host.control_groups import ROOT, control_groups

NO_LIMIT_BYTES = 1 << 60  # version 1 writes a huge number for "no limit"
LIMIT_FILES = ("memory.max", "memory.limit_in_bytes")
USAGE_FILES = ("memory.current", "memory.usage_in_bytes")
DROPPABLE = ("inactive_file", "active_file")


def total_bytes(root: Path = ROOT) -> int | None:
    """Return the machine's memory, or a control group's lower limit; None where the kernel tells nothing."""
    return _least(meminfo_bytes("MemTotal", root), (limit for _, limit in _limits(root)))


def available_bytes(root: Path = ROOT) -> int | None:
    """Return the least that the machine and every control group can still give; None where the kernel tells nothing."""
    least = _least(meminfo_bytes("MemAvailable", root), _left_in_groups(root))
    return None if least is None else max(0, least)


def meminfo_bytes(name: str, root: Path = ROOT) -> int | None:
    """Return one figure of /proc/meminfo; None where there is none."""
    value = fields_of(root / "proc/meminfo").get(f"{name}:")
    return int(value) * 1024 if value is not None and value.isdigit() else None


def fields_of(path: Path) -> dict[str, str]:
    """Return the first two words of every line of a file of the kernel's; empty where there is none."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return {}
    words = (line.split() for line in lines)
    return {parts[0]: parts[1] for parts in words if len(parts) > 1}


def _left_in_groups(root: Path) -> Iterator[int]:
    for folder, limit in _limits(root):
        used = next((found for name in USAGE_FILES if (found := _number(folder / name)) is not None), None)
        if used is not None:
            yield limit - max(0, used - _droppable_bytes(folder))


def _limits(root: Path) -> Iterator[tuple[Path, int]]:
    """Yield every memory limit on the process, with the folder of its group."""
    for folder in control_groups("memory", root):
        for name in LIMIT_FILES:
            limit = _number(folder / name)
            if limit is not None and limit < NO_LIMIT_BYTES:
                yield folder, limit


def _droppable_bytes(folder: Path) -> int:
    """Return the pages of files; those named `total_`, of version 1, count the inner groups' too."""
    stat = fields_of(folder / "memory.stat")
    values = (stat.get(f"total_{name}", stat.get(name, "0")) for name in DROPPABLE)
    return sum(int(value) for value in values if value.isdigit())


def _number(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _least(first: int | None, others: Iterator[int]) -> int | None:
    return min([*([] if first is None else [first]), *others], default=None)
