"""Resource limits that the engine's process sets on itself before it imports node packs; they cannot be raised again.

They apply to every process that a pack starts, too. They do not include the size of the address space (RLIMIT_AS): CUDA
reserves many times the memory that it uses. RLIMIT_DATA counts private writable memory, so neither reservations nor
mappings of a GPU's driver.
"""

from __future__ import annotations

import contextlib
import resource
from pathlib import Path

from darkroom.engine.settings import Confinement

OOM_SCORE = "500"  # the kernel, short of memory, ends this process before the front
OOM_SCORE_FILE = Path("/proc/self/oom_score_adj")


def confine(limits: Confinement) -> None:
    """Lower the limits of this process and of all that it starts, never above their previous values."""
    if not limits.is_confined:
        return
    _lower(resource.RLIMIT_CORE, 0)  # a core file holds the memory, and fills the disk
    _lower(resource.RLIMIT_NPROC, limits.max_processes)
    _lower(resource.RLIMIT_FSIZE, limits.max_file_bytes)
    _lower(resource.RLIMIT_DATA, limits.max_memory_bytes)
    with contextlib.suppress(OSError):
        OOM_SCORE_FILE.write_text(OOM_SCORE)


def _lower(kind: int, limit: int | None) -> None:
    if limit is None:
        return
    _, hard = resource.getrlimit(kind)
    lowest = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    resource.setrlimit(kind, (lowest, lowest))
