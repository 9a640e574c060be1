"""How much memory there is, is left, and a process has; read from the kernel's files, control groups included."""

from __future__ import annotations

from pathlib import Path

from machine.control_groups import ROOT, control_groups
from machine.memory import available_bytes, fields_of, total_bytes


class MachineMemory:
    """The kernel's figures below `root`, which is where `proc` and `sys` are."""

    def __init__(self, root: Path = ROOT) -> None:
        self._root = root

    def total_bytes(self) -> int | None:
        """The machine's memory, or the lowest limit of a control group; None where the kernel tells nothing."""
        return total_bytes(self._root)

    def available_bytes(self) -> int | None:
        """The least that the machine and every control group can still give; page cache counts as free."""
        return available_bytes(self._root)

    def process_bytes(self, pid: int) -> int | None:
        """Anonymous and shared memory of a process, which no file could give back; None when it is gone."""
        fields = fields_of(self._root / "proc" / str(pid) / "status")
        parts = [fields.get(name) for name in ("RssAnon:", "RssShmem:")]
        known = [int(part) * 1024 for part in parts if part is not None]
        return sum(known) if known else None

    def num_oom_kills(self) -> int:
        """Processes that the kernel has killed for memory so far, in our control groups or on the machine."""
        counts = [fields_of(self._root / "proc" / "vmstat").get("oom_kill")]
        for folder in control_groups("memory", self._root):
            counts += [fields_of(folder / name).get("oom_kill") for name in ("memory.events", "memory.oom_control")]
        return sum(int(count) for count in counts if count is not None and count.isdigit())
