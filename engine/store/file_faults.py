"""Faults of model files that their headers show: a file cut off, a web page by another name. No weights are read."""

from __future__ import annotations

from pathlib import Path

from engine.errors import BadModelFile
from engine.formats.safetensors_file import SafetensorsFile
from engine.formats.weight_file import SAFETENSORS_ENDINGS
from engine.store.folders import ModelFolders

MAX_KEPT = 10_000


class FileFaults:
    """Cache of the faults of `.safetensors` files, by size and modification time."""

    def __init__(self, folders: ModelFolders) -> None:
        self._folders = folders
        self._known: dict[tuple[Path, int, int], str | None] = {}

    def find(self, kind: str, name: str) -> str | None:
        """Return what is wrong with a file, None for a whole one, one of another format, and one that is not there."""
        try:
            path = self._folders.path(kind, name)
            if path is None or path.suffix.lower() not in SAFETENSORS_ENDINGS:
                return None
            state = path.stat()
        except (KeyError, OSError, ValueError):  # no such kind; removed meanwhile; no name of a file
            return None
        key = path, state.st_size, state.st_mtime_ns
        if key not in self._known:
            if len(self._known) >= MAX_KEPT:
                self._known.clear()
            self._known[key] = _fault_of(path)
        return self._known[key]


def _fault_of(path: Path) -> str | None:
    try:
        SafetensorsFile(path)
    except BadModelFile as error:
        return str(error)
    except OSError:  # it cannot be read: reported when it is loaded
        return None
    return None
