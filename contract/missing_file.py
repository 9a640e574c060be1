"""Problem of a path where there is no file, with the nearest name that is there."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Final

from darkroom.contract.nearest import nearest_name

MAX_COMPARED: Final = 2000  # of a folder
ALIKE: Final = 0.75  # names share their endings


def missing_file(path: Path, *, kind: str = "file") -> str:
    """Return the problem of a path at which nothing is: `no such file (did you mean 'flow.json'?)`."""
    if path.is_dir():
        return f"is a folder; expected a {kind}"
    if not path.parent.is_dir():
        return f"no such {kind}: the folder {path.parent} does not exist"
    nearest = nearest_name(path.name, _names_in(path.parent), cutoff=ALIKE)
    return f"no such {kind}" + (f" (did you mean {str(path.with_name(nearest))!r}?)" if nearest else "")


def unreadable_file(path: Path, error: OSError) -> str:
    """Return the reason why a file cannot be read."""
    if isinstance(error, (FileNotFoundError, IsADirectoryError)):
        return f"cannot be read: {missing_file(path)}"
    return f"cannot be read: {(error.strerror or type(error).__name__).lower()}"


def _names_in(folder: Path) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in itertools.islice(entries, MAX_COMPARED)]
    except OSError:
        return []
