"""DiskLevel: the downloaded model files below `models/`, their uses, and their eviction above a limit.

Only files that were downloaded here, which have their checksum beside them, are ever removed: not those that the
operator put there, not those that the manifest asks for, and none that a job needs. Uses are kept in a file, so that a
restart forgets none.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import asdict, fields
from pathlib import Path

import structlog

from darkroom.worker.models.eviction import FileUse, after_use, choose_victims
from darkroom.worker.models.files import ModelFile, checksum_path, list_models

log = structlog.get_logger("models")


class DiskLevel:
    """Owner of the downloaded files. Methods may be called from any thread; those that list files read the folder.

    `max_bytes` 0: no limit, and nothing is evicted.
    """

    def __init__(
        self,
        models_directory: Path,
        uses_path: Path,
        max_bytes: int,
        pinned: Collection[str] = (),
        on_evicted: Callable[[str, int], None] = lambda place, num_bytes: None,
    ) -> None:
        self._models = models_directory
        self._path = uses_path
        self._max_bytes = max_bytes
        self._pinned = frozenset(pinned)
        self._on_evicted = on_evicted
        self._lock = threading.Lock()
        self._held: dict[str, set[str]] = {}  # place -> job ids
        self._uses = _read_uses(uses_path)
        self._is_changed = False

    def has(self, place: str) -> bool:
        return (self._models / place).is_file()

    def use(self, place: str, job_id: str) -> None:
        """Count a use of a file, and hold it until the job is released."""
        with self._lock:
            self._held.setdefault(place, set()).add(job_id)
            known, now = self._uses.get(place), time.time()
            if known is not None:
                self._uses[place] = after_use(known, now)
            else:
                with suppress(OSError):
                    size_bytes = (self._models / place).stat().st_size
                    self._uses[place] = FileUse(place, size_bytes, now)
            self._is_changed = True

    def hold(self, place: str, job_id: str) -> None:
        """Keep a file, also one that is still to come, until the job is released."""
        with self._lock:
            self._held.setdefault(place, set()).add(job_id)

    def release(self, job_id: str) -> None:
        """Release all files of a job that has ended."""
        with self._lock:
            for place in [place for place, jobs in self._held.items() if job_id in jobs]:
                self._held[place].discard(job_id)
                if not self._held[place]:
                    del self._held[place]

    def make_room(self, num_bytes: int) -> None:
        """Evict files until `num_bytes` more of the disk are free, as far as that is possible."""
        if self._max_bytes:  # else the operator has no files evicted
            there = self._downloaded()
            with self._lock:
                self._remove(choose_victims(self._with_uses(there), self._kept(), num_bytes))

    def sweep(self, room_bytes: int = 0) -> None:
        """Evict files above the limit with so many bytes to come; write the uses to disk."""
        there = self._downloaded()
        with self._lock:
            files = self._with_uses(there)
            if self._max_bytes:
                over_bytes = sum(file.size_bytes for file in files) + room_bytes - self._max_bytes
                self._remove(choose_victims(files, self._kept(), over_bytes))
            if self._is_changed:
                self._write()

    def listed(self) -> list[FileUse]:
        """Return the downloaded files with their uses, the last used first."""
        there = self._downloaded()
        with self._lock:
            return sorted(self._with_uses(there), key=lambda file: -file.used_at_seconds)

    def check_integrity(self) -> list[str]:
        """Return one line for each inconsistency; empty is good."""
        with self._lock:
            return [f"{place} is held by no job" for place, jobs in self._held.items() if not jobs]

    def _kept(self) -> frozenset[str]:
        return self._pinned | self._held.keys()

    def _downloaded(self) -> list[tuple[ModelFile, float]]:
        """List the downloaded files with the time of their arrival, without the lock: a folder may be slow."""
        found = []
        for model in list_models(self._models) if self._models.is_dir() else ():
            with suppress(OSError):
                if checksum_path(model.path).is_file():
                    found.append((model, model.path.stat().st_mtime))
        return found

    def _with_uses(self, there: list[tuple[ModelFile, float]]) -> list[FileUse]:
        """Return files with their uses; one that no job has used counts from its arrival."""
        return [
            self._uses.get(model.name) or FileUse(model.name, model.size_bytes, arrived) for model, arrived in there
        ]

    def _remove(self, victims: list[FileUse]) -> None:
        for file in victims:
            path = self._models / file.place
            with suppress(OSError):
                path.unlink()
                checksum_path(path).unlink(missing_ok=True)
                self._uses.pop(file.place, None)
                self._is_changed = True
                self._on_evicted(file.place, file.size_bytes)
                log.info("model evicted", model=file.place, size_bytes=file.size_bytes)

    def _write(self) -> None:
        body = {"files": [asdict(use) for use in self._uses.values()]}
        partial = self._path.with_name(f"{self._path.name}.new")
        with suppress(OSError):  # a use that is forgotten costs a download at most
            self._path.parent.mkdir(parents=True, exist_ok=True)
            partial.write_text(json.dumps(body), encoding="utf-8")
            os.replace(partial, self._path)
            self._is_changed = False


def _read_uses(path: Path) -> dict[str, FileUse]:
    """Return the uses by place; none where there is no usable file. Fields of earlier versions are left out."""
    names = [field.name for field in fields(FileUse)]
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
        uses = [FileUse(**{name: item[name] for name in names}) for item in body["files"]]
        return {use.place: use for use in uses}
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}
