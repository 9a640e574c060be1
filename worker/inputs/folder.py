"""InputFolder: fetched files, stored by content hash, with the jobs that need them.

A file that a job needs is never removed. Other files are evicted by age, or, least recently used first, when the total
size is too large. The reference counts are in memory; after a restart a job fetches its files again.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

PARTIAL_PREFIX = ".partial-"
PARTIAL_SECONDS = 24 * 3600.0  # age at which an abandoned partial download is removed


@dataclass(frozen=True, slots=True)
class StoredFile:
    name: str
    size_bytes: int
    used_at_seconds: float


def surplus(
    files: Iterable[StoredFile], held: Collection[str], unused_before_seconds: float, max_bytes: int
) -> list[str]:
    """Return the names of the files to evict.

    Those are files not used since the given time, and the least recently used while the rest exceeds the total.
    """
    kept_bytes, gone = 0, []
    for file in sorted(files, key=lambda file: (file.name not in held, -file.used_at_seconds)):
        is_held = file.name in held
        if not is_held and (file.used_at_seconds < unused_before_seconds or kept_bytes + file.size_bytes > max_bytes):
            gone.append(file.name)
        else:
            kept_bytes += file.size_bytes
    return gone


class InputFolder:
    """Fetched files on disk. Methods may be called from any thread; `sweep` reads the whole folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._needed_by: dict[str, set[str]] = {}  # file name -> job ids
        self._held: dict[str, dict[str, int]] = {}  # job id -> bytes by file name

    def keep(self, partial: Path, name: str, *, is_only_copy: bool = False) -> Path:
        """Move a complete file to its name. Equal content is stored once.

        A file that cannot be fetched again (`is_only_copy`) is synced to disk before this returns, as its job is.
        """
        target = self.path / name
        if is_only_copy:
            _write_through(partial)
        with self._lock:
            os.replace(partial, target)
        if is_only_copy:
            _write_through(self.path)
        return target

    def hold(self, name: str, job_id: str) -> bool:
        """Mark a file as needed by a job until its release.

        Returns False if the file is missing and must be fetched again.
        """
        with self._lock:
            try:
                os.utime(self.path / name)
                size_bytes = (self.path / name).stat().st_size
            except FileNotFoundError:
                return False
            self._needed_by.setdefault(name, set()).add(job_id)
            self._held.setdefault(job_id, {})[name] = size_bytes
            return True

    def held_bytes(self, job_ids: Iterable[str]) -> int:
        """Return the bytes of the files that jobs need, one that several of them need counted once."""
        with self._lock:
            files: dict[str, int] = {}
            for job_id in job_ids:
                files |= self._held.get(job_id, {})
        return sum(files.values())

    def release(self, job_id: str) -> None:
        """Release all files of a job that has ended."""
        with self._lock:
            for name in self._held.pop(job_id, {}):
                self._needed_by[name].discard(job_id)
                if not self._needed_by[name]:
                    del self._needed_by[name]

    def sweep(self, unused_before_seconds: float, max_bytes: int) -> list[str]:
        """Evict files and return their names."""
        with self._lock:
            files, partials = _files_in(self.path)
            gone = surplus(files, self._needed_by.keys(), unused_before_seconds, max_bytes)
            too_old = time.time() - PARTIAL_SECONDS
            for name in (*gone, *(file.name for file in partials if file.used_at_seconds < too_old)):
                with suppress(FileNotFoundError):
                    (self.path / name).unlink()
        return gone


def _write_through(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _files_in(folder: Path) -> tuple[list[StoredFile], list[StoredFile]]:
    """List the complete and the partial files."""
    whole: list[StoredFile] = []
    partial: list[StoredFile] = []
    for entry in os.scandir(folder) if folder.is_dir() else ():
        with suppress(FileNotFoundError):
            if entry.is_file(follow_symlinks=False):
                status = entry.stat(follow_symlinks=False)
                stored = StoredFile(entry.name, status.st_size, status.st_mtime)
                (partial if entry.name.startswith(PARTIAL_PREFIX) else whole).append(stored)
    return whole, partial
