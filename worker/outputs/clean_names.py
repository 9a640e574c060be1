"""Names that are safe as a file name, a key and a header. Pure."""

from __future__ import annotations

import unicodedata
from pathlib import Path, PurePosixPath

MAX_NAME_BYTES = 200


def clean_name(name: str) -> str:
    """Return the last part of a name, safe as a file name, a key and a header.

    Separators, control characters and leading dots are removed.

    >>> clean_name("../../a/b.png")
    'b.png'
    """
    last = name.replace("\\", "/").rpartition("/")[2]
    kept = "".join("_" if unicodedata.category(letter)[0] == "C" else letter for letter in last).strip().lstrip(".")
    stem, suffix = Path(kept).stem, Path(kept).suffix
    room = MAX_NAME_BYTES - len(suffix.encode())
    cut = stem.encode()[: max(room, 0)].decode(errors="ignore") + suffix
    return cut or "output"


def clean_subfolder(subfolder: str) -> str:
    """Return a relative path without `..`, each part cleaned as a name."""
    parts = PurePosixPath(subfolder.replace("\\", "/")).parts
    return "/".join(clean_name(part) for part in parts if part.strip("./ "))
