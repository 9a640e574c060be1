"""Benchmark of reading model files from disk, bypassing the page cache where the file system allows it."""

from __future__ import annotations

import errno
import mmap
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

CHUNK_BYTES = 8 * 1024**2
MAX_BYTES = 1024**3
MAX_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class DiskFigure:
    """Measured read speed: GB are 1e9 bytes. With `is_cached` the data may have come from memory."""

    gb_per_second: float
    read_bytes: int
    file: str
    is_cached: bool


def measure_disk(paths: Iterable[Path]) -> DiskFigure | None:
    """Measure the largest of the files, for a second or a gigabyte; None if no file can be read."""
    sizes = [(path.stat().st_size, path) for path in paths if path.is_file()]
    if not sizes or max(sizes)[0] == 0:
        return None
    path = max(sizes)[1]
    try:
        return _read(path, os.O_DIRECT)
    except OSError as error:
        if error.errno != errno.EINVAL:
            return None
    try:
        return _read(path, 0)  # a file system that knows no direct reading
    except OSError:
        return None


def _read(path: Path, direct: int) -> DiskFigure:
    descriptor = os.open(path, os.O_RDONLY | direct)
    try:
        if not direct:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        with mmap.mmap(-1, CHUNK_BYTES) as buffer:  # aligned to pages, as direct reading asks
            read_bytes, began_seconds = 0, time.perf_counter()
            while read_bytes < MAX_BYTES and time.perf_counter() - began_seconds < MAX_SECONDS:
                num_bytes = os.readv(descriptor, [buffer])
                read_bytes += num_bytes
                if num_bytes < CHUNK_BYTES:
                    break
            seconds = time.perf_counter() - began_seconds
    finally:
        os.close(descriptor)
    return DiskFigure(read_bytes / max(seconds, 1e-9) / 1e9, read_bytes, path.name, not direct)
