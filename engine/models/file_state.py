"""State of a model file at a time, by which a change of its content is detected."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from darkroom.engine.formats.arriving_file import stat_of


class FileState(NamedTuple):
    """State of a file at the time it was read."""

    path: str
    mtime_ns: int
    num_bytes: int


def state_of(path: Path) -> FileState:
    """Return the state of a file. Call it before opening the file, so that a change meanwhile is detected.

    That of a file which is being downloaded changes until its content has been checked.
    """
    state = stat_of(path)
    return FileState(str(path), state.st_mtime_ns, state.st_size)


def has_changed(file: FileState) -> bool:
    """Return True if a file changed since it was read. A deleted one did not: the weights read from it stay valid."""
    try:
        return state_of(Path(file.path)) != file
    except OSError:
        return False
