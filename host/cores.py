"""Processor cores that this process may use, as the kernel's files show them."""

from __future__ import annotations

import os
from pathlib import Path

from darkroom.host.control_groups import ROOT, control_groups


def usable_cores(root: Path = ROOT) -> int:
    """Return the physical cores that the process may run on, no more than its quota of processor time allows."""
    cores, quota = physical_cores(allowed_processors(), root), cpu_quota(root)
    return max(1, cores if quota is None else min(cores, int(quota)))


def allowed_processors() -> set[int]:
    """Return the numbers of the logical processors that the process may run on."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))


def cpu_quota(root: Path = ROOT) -> float | None:
    """Return the processors' worth of time that the tightest cgroup around the process allows; None without a limit."""
    quotas = (_quota_of(folder) for folder in control_groups("cpu", root))
    return min((quota for quota in quotas if quota is not None), default=None)


def processor_model(root: Path = ROOT) -> str | None:
    """Return the processor's name as its maker gives it; None where the kernel tells none (ARM)."""
    return _of_first_processor("model name", root)


def processor_flags(root: Path = ROOT) -> frozenset[str]:
    """Return the instruction sets of the processor by the kernel's names; none where it does not tell them so (ARM)."""
    return frozenset((_of_first_processor("flags", root) or "").split())


def physical_cores(processors: set[int], root: Path = ROOT) -> int:
    """Return the number of cores behind logical processors; each counts for itself where that is not known."""
    cores: set[tuple[str, str]] = set()
    for number in processors:
        folder = root / f"sys/devices/system/cpu/cpu{number}/topology"
        try:
            cores.add(((folder / "physical_package_id").read_text(), (folder / "core_id").read_text()))
        except OSError:
            return len(processors)
    return len(cores)


def _of_first_processor(wanted: str, root: Path) -> str | None:
    """Return a field of /proc/cpuinfo."""
    try:
        lines = (root / "proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    fields = (line.partition(":") for line in lines)
    return next((value.strip() for name, _, value in fields if name.strip() == wanted), None)


def _quota_of(folder: Path) -> float | None:
    """Return quota over period of one cgroup; no limit is written as "max", in version 1 as -1."""
    try:
        if (folder / "cpu.max").exists():
            quota, period = (folder / "cpu.max").read_text().split()
        else:
            quota, period = ((folder / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        return float(quota) / float(period) if float(quota) > 0 else None
    except (OSError, ValueError):
        return None
