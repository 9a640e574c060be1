"""Files below `models/` that nobody asks for: downloads that the manifest lacks, and parts of abandoned ones."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from darkroom.contract.downloads import DOWNLOADS
from darkroom.worker.models.files import checksum_path, list_models

ABANDONED_SECONDS = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class SurplusFile:
    """A file to remove, with what lies beside it."""

    name: str
    size_bytes: int
    paths: tuple[Path, ...]

    def remove(self) -> None:
        for path in self.paths:
            path.unlink(missing_ok=True)


def find_surplus(models_directory: Path, wanted: Collection[str], now_seconds: float) -> list[SurplusFile]:
    """Return downloaded files that are not wanted, and parts that nothing has written to for a day.

    A file counts as downloaded if its checksum lies beside it.
    """
    found = [
        SurplusFile(model.name, model.size_bytes, (model.path, checksum_path(model.path)))
        for model in list_models(models_directory)
        if model.name not in wanted and checksum_path(model.path).is_file()
    ]
    downloads = models_directory / DOWNLOADS
    for path in sorted(downloads.rglob("*")) if downloads.is_dir() else ():
        if path.is_file() and now_seconds - path.stat().st_mtime > ABANDONED_SECONDS:
            found.append(SurplusFile(str(path.relative_to(models_directory)), path.stat().st_size, (path,)))
    return found
