"""State of the manifest's files on disk, by size and recorded checksum, without reading them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from darkroom.worker.models.entry import ModelEntry
from darkroom.worker.models.files import checksum_path

FileState = Literal["good", "missing", "other version"]


def file_state(entry: ModelEntry, models_directory: Path) -> FileState:
    """Return the state of a file: another size, or another checksum recorded at its download, is another version."""
    path = entry.path_below(models_directory)
    if not path.is_file():
        return "missing"
    if entry.size_bytes is not None and path.stat().st_size != entry.size_bytes:
        return "other version"
    recorded = checksum_path(path)
    if entry.sha256 is not None and recorded.is_file():
        return "good" if recorded.read_text().split(" ", 1)[0].strip() == entry.sha256 else "other version"
    return "good"


def file_states(entries: Iterable[ModelEntry], models_directory: Path) -> dict[str, FileState]:
    """Return the state of each file by its place below `models/`."""
    return {entry.place: file_state(entry, models_directory) for entry in entries}
