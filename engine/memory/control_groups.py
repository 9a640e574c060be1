"""The control groups around this process, and the share of the processor that they leave it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path


def control_groups(root: Path, controller: str) -> Iterator[Path]:
    """Folders of the groups of one controller, from the innermost to the outermost; versions 2 and 1.

    `root` is where `proc` and `sys` are.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "" or controller in controllers.split(","):
            mount = root / "sys/fs/cgroup" / (controller if controllers else "")
            inner = mount / path.lstrip("/")
            yield from (inner, *(folder for folder in inner.parents if folder.is_relative_to(mount)))


def allowed_cores(root: Path = Path("/")) -> int | None:
    """How many cores' time the groups allow, rounded up; None without a limit.

    A container that may use 4 of a machine's 128 cores still sees 128: a thread on each would be stopped most of the
    time, and every parallel loop would wait for the slowest.
    """
    shares = (_share(folder) for folder in control_groups(root, "cpu"))
    least = min((share for share in shares if share is not None), default=None)
    return None if least is None else max(1, math.ceil(least))


def _share(folder: Path) -> float | None:
    """Cores: quota over period."""
    try:
        if (folder / "cpu.max").exists():
            quota, period = (folder / "cpu.max").read_text().split()
        else:
            quota, period = ((folder / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        return float(quota) / float(period) if float(quota) > 0 else None
    except (OSError, ValueError):  # no limit is written as "max", in version 1 as -1
        return None
