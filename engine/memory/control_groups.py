"""The share of the processor that the control groups around this process leave it."""

from __future__ import annotations

import math
from pathlib import Path

from machine.control_groups import ROOT, control_groups


def allowed_cores(root: Path = ROOT) -> int | None:
    """Return the number of cores whose time the cgroups allow, rounded up; None without a limit.

    A container that may use 4 of a machine's 128 cores still sees 128: a thread on each would be stopped most of the
    time, and every parallel loop would wait for the slowest.
    """
    shares = (_share(folder) for folder in control_groups("cpu", root))
    least = min((share for share in shares if share is not None), default=None)
    return None if least is None else max(1, math.ceil(least))


def _share(folder: Path) -> float | None:
    """Return the cores that one cgroup allows: quota over period; None without a limit."""
    try:
        if (folder / "cpu.max").exists():
            quota, period = (folder / "cpu.max").read_text().split()
        else:
            quota, period = ((folder / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        return float(quota) / float(period) if float(quota) > 0 else None
    except (OSError, ValueError):  # no limit is written as "max", in version 1 as -1
        return None
