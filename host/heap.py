"""The heap of this process: unused memory goes back to the system."""

from __future__ import annotations

import ctypes
import sys


def trim_heap() -> None:
    """Return unused memory of the heap to the system, where the C library can do that (glibc).

    Otherwise the process keeps the memory of many small objects for as long as it runs.
    """
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
