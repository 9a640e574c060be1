"""The heap of this process: unused memory goes back to the system."""

from __future__ import annotations

import ctypes
import sys
from typing import Final

MAPPED_BYTES: Final = 512 * 1024
_M_MMAP_THRESHOLD: Final = -3  # malloc.h


def trim_heap() -> None:
    """Return unused memory of the heap to the system, where the C library can do that (glibc).

    Otherwise the process keeps the memory of many small objects for as long as it runs.
    """
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)


def map_large_blocks(min_bytes: int = MAPPED_BYTES) -> None:
    """Let the C library (glibc) map blocks from this size on by themselves: what is freed of them goes back at once.

    By default the size grows with the blocks that are freed, so large documents come to lie in the heaps of the threads
    that handle them, and each keeps its own.
    """
    if sys.platform == "linux":
        set_option = getattr(ctypes.CDLL(None), "mallopt", None)
        if set_option is not None:
            set_option(_M_MMAP_THRESHOLD, min_bytes)
