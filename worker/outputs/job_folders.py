"""The folders of jobs, `jobs/<id>/`: eviction above a total size, and removal of orphans.

Blocking, except for the functions that decide, which are pure.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class JobFolder:
    job_id: str
    size_bytes: int
    changed_at_seconds: float


def surplus_folders(folders: Iterable[JobFolder], live_ids: Collection[str], max_bytes: int) -> list[str]:
    """Return the ids of the folders to evict, the oldest first, so that the rest fits `max_bytes`.

    Folders of live jobs are counted but not evicted.
    """
    kept_bytes, gone = 0, []
    for folder in sorted(folders, key=lambda folder: (folder.job_id not in live_ids, -folder.changed_at_seconds)):
        if folder.job_id not in live_ids and kept_bytes + folder.size_bytes > max_bytes:
            gone.append(folder.job_id)
        else:
            kept_bytes += folder.size_bytes
    return gone


def folders_in(directory: Path, known: Mapping[str, JobFolder] = MappingProxyType({})) -> Iterator[JobFolder]:
    """Yield every folder; those in `known` are not measured again."""
    for entry in os.scandir(directory):
        with suppress(FileNotFoundError):
            if entry.name in known:
                yield known[entry.name]
            elif entry.is_dir(follow_symlinks=False):
                yield JobFolder(entry.name, _size_of(Path(entry.path)), entry.stat(follow_symlinks=False).st_mtime)


def remove_orphans(directory: Path, known_ids: Collection[str]) -> list[str]:
    """Remove folders without a job, which a crash can leave behind, and return their names."""
    orphans = [entry.name for entry in os.scandir(directory) if entry.name not in known_ids and entry.is_dir()]
    for name in orphans:
        shutil.rmtree(directory / name, ignore_errors=True)
    return orphans


def remove_older(directory: Path, before_seconds: float) -> None:
    """Remove every file below a folder whose last change is before the given time."""
    for folder, _, names in os.walk(directory):
        for name in names:
            with suppress(OSError):
                path = Path(folder, name)
                if path.lstat().st_mtime < before_seconds:
                    path.unlink()


def _size_of(directory: Path) -> int:
    size_bytes = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            with suppress(OSError):
                size_bytes += Path(folder, name).lstat().st_size
    return size_bytes
