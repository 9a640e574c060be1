"""Media types of files, by their first bytes, else by their names."""

from __future__ import annotations

import mimetypes
import os
from pathlib import Path

from darkroom.worker.media.kinds import HEAD_BYTES, kind_of


def media_type_of(path: Path, head: bytes) -> str:
    """Return the media type by the first bytes, else by the name."""
    kind = kind_of(head)
    if kind is not None and kind.media_type != "application/octet-stream":
        return kind.media_type
    return mimetypes.guess_type(path.name)[0] or "application/octet-stream"


def look_at(path: Path) -> tuple[str, int]:
    with path.open("rb") as file:
        return media_type_of(path, file.read(HEAD_BYTES)), os.fstat(file.fileno()).st_size
