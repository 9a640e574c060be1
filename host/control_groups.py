"""The control groups around this process, of versions 1 and 2, as the kernel's files show them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/")


def control_groups(controller: str, root: Path = ROOT) -> Iterator[Path]:
    """Yield the folders of the groups of one controller, from the innermost to the outermost.

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
            yield from (folder for folder in (inner, *inner.parents) if folder.is_relative_to(mount))
