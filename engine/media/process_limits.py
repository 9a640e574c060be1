"""Limits that a process sets on itself before it reads what strangers send."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

PR_SET_PDEATHSIG = 1
OOM_SCORE, OOM_SCORE_FILE = "900", Path("/proc/self/oom_score_adj")


def lower_limits(limits: Mapping[int, int]) -> None:
    """Lower limits of this process by their kind (`resource.RLIMIT_…`), never above their previous values."""
    for kind, limit in limits.items():
        _, hard = resource.getrlimit(kind)
        lowest = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(kind, (lowest, lowest))


def end_before(parent: int) -> None:
    """Let the kernel end this process with its parent, and before it where memory is short.

    The kernel's signal ends it also while a library computes and no thread of Python runs. `parent` is the process id
    of the parent: the process exits at once where that has ended already. Does nothing but that on other systems than
    Linux.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        with contextlib.suppress(OSError):
            OOM_SCORE_FILE.write_text(OOM_SCORE)
    if os.getppid() != parent:
        sys.exit(1)
