"""Faults of model files that their headers show: a file cut off, a web page, a network of no family of the engine.

No weights are read.
"""

from __future__ import annotations

from pathlib import Path

from engine.errors import BadModelFile
from engine.families import registry
from engine.formats.safetensors_file import SafetensorsFile
from engine.formats.weight_file import SAFETENSORS_ENDINGS
from engine.store.file_families import DENOISER_KINDS
from engine.store.folders import ModelFolders

MAX_KEPT = 10_000


class FileFaults:
    """Cache of the faults of `.safetensors` files, by size and modification time."""

    def __init__(self, folders: ModelFolders) -> None:
        self._folders = folders
        self._known: dict[tuple[Path, int, int, bool], str | None] = {}

    def find(self, kind: str, name: str) -> str | None:
        """Return what is wrong with a file, None for a whole one, one of another format, and one that is not there."""
        try:
            path = self._folders.path(kind, name)
            if path is None or path.suffix.lower() not in SAFETENSORS_ENDINGS:
                return None
            state = path.stat()
        except (KeyError, OSError, ValueError):  # no such kind; removed meanwhile; no name of a file
            return None
        holds_network = kind in DENOISER_KINDS
        key = path, state.st_size, state.st_mtime_ns, holds_network
        if key not in self._known:
            if len(self._known) >= MAX_KEPT:
                self._known.clear()
            self._known[key] = _fault_of(path, holds_network=holds_network)
        return self._known[key]


def _fault_of(path: Path, *, holds_network: bool) -> str | None:
    try:
        shapes = SafetensorsFile(path).shapes
    except BadModelFile as error:
        return str(error)
    except OSError:  # it cannot be read: reported when it is loaded
        return None
    later = registry.describe_refused(shapes) if holds_network else None
    return None if later is None else str(BadModelFile(path.name, later, f"the network of {registry.labels()}"))
