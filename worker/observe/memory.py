"""Memory of the machine and of processes, from the kernel's files and control groups."""

from __future__ import annotations

from pathlib import Path

from darkroom.host.control_groups import ROOT, control_groups
from darkroom.host.memory import available_bytes, fields_of, total_bytes


class MachineMemory:
    """Memory figures of the kernel; `root` contains `proc` and `sys`."""

    def __init__(self, root: Path = ROOT) -> None:
        self._root = root

    def total_bytes(self) -> int | None:
        """Return the machine's memory, or the lowest limit of a control group; None where the kernel reports none."""
        return total_bytes(self._root)

    def available_bytes(self) -> int | None:
        """Return the least that the machine and every control group can still give; page cache counts as free."""
        return available_bytes(self._root)

    def process_bytes(self, pid: int) -> int | None:
        """Return the anonymous and shared memory of a process, which is not reclaimable; None when it has ended."""
        fields = fields_of(self._root / "proc" / str(pid) / "status")
        parts = [fields.get(name) for name in ("RssAnon:", "RssShmem:")]
        known = [int(part) * 1024 for part in parts if part is not None]
        return sum(known) if known else None

    def num_oom_kills(self) -> int:
        """Return the number of processes that the kernel has killed for memory, here or on the machine."""
        counts = [fields_of(self._root / "proc" / "vmstat").get("oom_kill")]
        for folder in control_groups("memory", self._root):
            counts += [fields_of(folder / name).get("oom_kill") for name in ("memory.events", "memory.oom_control")]
        return sum(int(count) for count in counts if count is not None and count.isdigit())
