"""How much memory there is, is left, and a process has; read from the kernel's files, control groups included.

Page cache that the kernel can drop counts as free, and of a process only what cannot be read from a file again.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

UNLIMITED_BYTES = 1 << 60  # version 1 writes a huge number where there is no limit
LIMIT_FILES = ("memory.max", "memory.limit_in_bytes")
USAGE_FILES = ("memory.current", "memory.usage_in_bytes")


class MachineMemory:
    """`root` is where `proc` and `sys` are."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root

    def total_bytes(self) -> int | None:
        """The machine's memory, or the lowest limit of a control group; None where the kernel tells nothing."""
        machine = self._meminfo_bytes("MemTotal")
        return min([*([] if machine is None else [machine]), *(limit for _, limit in self._limits())], default=None)

    def available_bytes(self) -> int | None:
        """The least that the machine and every control group can still give."""
        machine = self._meminfo_bytes("MemAvailable")
        left = [limit - used for limit, used in self._used()]
        return max(0, min([*left, *([] if machine is None else [machine])])) if left or machine is not None else None

    def process_bytes(self, pid: int) -> int | None:
        """Anonymous and shared memory of a process; None when it is gone."""
        fields = _fields(self._root / "proc" / str(pid) / "status")
        parts = [fields.get(name) for name in ("RssAnon:", "RssShmem:")]
        known = [int(part) * 1024 for part in parts if part is not None]
        return sum(known) if known else None

    def num_oom_kills(self) -> int:
        """Processes that the kernel has killed for memory so far, in our control groups or on the machine."""
        counts = [_fields(self._root / "proc" / "vmstat").get("oom_kill")]
        for folder in self._groups():
            counts += [_fields(folder / name).get("oom_kill") for name in ("memory.events", "memory.oom_control")]
        return sum(int(count) for count in counts if count is not None and count.isdigit())

    def _used(self) -> Iterator[tuple[int, int]]:
        for folder, limit in self._limits():
            used = next((found for name in USAGE_FILES if (found := _number(folder / name)) is not None), None)
            if used is not None:
                stat = _fields(folder / "memory.stat")
                droppable = stat.get("total_inactive_file", stat.get("inactive_file", "0"))
                yield limit, used - int(droppable)

    def _limits(self) -> Iterator[tuple[Path, int]]:
        for folder in self._groups():
            for name in LIMIT_FILES:
                limit = _number(folder / name)
                if limit is not None and limit < UNLIMITED_BYTES:
                    yield folder, limit

    def _groups(self) -> Iterator[Path]:
        """Our memory control groups, the innermost first, of version 2 and of version 1."""
        for line in _lines(self._root / "proc" / "self" / "cgroup"):
            _, controllers, path = line.split(":", 2)
            if controllers and "memory" not in controllers.split(","):
                continue
            mount = self._root / "sys" / "fs" / "cgroup" / ("memory" if controllers else "")
            inner = mount / path.lstrip("/")
            yield from (folder for folder in (inner, *inner.parents) if folder.is_relative_to(mount))

    def _meminfo_bytes(self, name: str) -> int | None:
        value = _fields(self._root / "proc" / "meminfo").get(f"{name}:")
        return None if value is None else int(value) * 1024


def _fields(path: Path) -> dict[str, str]:
    """The first two words of every line."""
    words = (line.split() for line in _lines(path))
    return {parts[0]: parts[1] for parts in words if len(parts) > 1}


def _number(path: Path) -> int | None:
    text = "".join(_lines(path)).strip()
    return int(text) if text.isdigit() else None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
