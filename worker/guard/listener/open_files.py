"""Limit of open files of the process, shared by connections, the database and the engine."""

from __future__ import annotations

import resource
from typing import Final

from darkroom.worker.settings.listener import ConnectionLimits

RESERVED_FILES: Final = 256
"""Files reserved for everything but client connections: database, engine, stores, transfers."""

MIN_CONNECTIONS: Final = 16


def raise_open_files() -> None:
    """Raise the soft limit of open files to the hard one; the usual soft limit is 1,024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def num_open_files() -> int:
    """Return the maximum number of open files of the process."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 2**31 if soft == resource.RLIM_INFINITY else soft


def fitting(limits: ConnectionLimits, max_files: int) -> ConnectionLimits:
    """Return limits that fit into so many open files: one address never gets more than half of all connections."""
    free = max(MIN_CONNECTIONS, max_files - min(RESERVED_FILES, max_files // 2))
    total = min(limits.max_connections, free)
    per_address = max(1, min(limits.num_per_address, total // 2))
    return limits.model_copy(update={"max_connections": total, "max_per_address": per_address})
