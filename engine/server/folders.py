"""Names of files in the input, output and temp folders, and what of them is refused."""

from __future__ import annotations

import os
from pathlib import Path

from darkroom.engine.settings import EngineSettings


def folder_of(settings: EngineSettings, kind: str) -> Path | None:
    """Return the folder of a kind of file (`input`, `output`, `temp`); None for any other word."""
    folders = {"input": settings.input_path, "output": settings.output_path, "temp": settings.temp_path}
    return folders.get(kind)


def is_unsafe_name(name: str) -> bool:
    """Return True where a file name is empty, absolute, climbs up or holds a NUL."""
    return not name or name.startswith(("/", "\\")) or ".." in name or "\0" in name


def inside(folder: Path, *parts: str) -> Path | None:
    """Join `folder` with `parts`; None when the result is outside of it. Symbolic links are not followed."""
    path = os.path.normpath(os.path.join(folder, *parts))
    root = os.path.normpath(folder)
    if "\0" in path or not (path == root or path.startswith(root.rstrip(os.sep) + os.sep)):
        return None
    return Path(path)
