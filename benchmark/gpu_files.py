"""The files of `benchmark/gpu.py`: each is written whole, to the disk, before it takes the place of the one before."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

REPORT, LINES, TABLE, LOG = "gpu.json", "gpu.jsonl", "table.md", "log.txt"
MAX_FILES = 8  # in the folder, of which this script writes four


def write_whole(path: Path, text: str) -> None:
    """Replace a file by one with this text, which is on the disk then."""
    partial = path.with_name(f".{path.name}.partial")
    with partial.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)
    sync_folder(path.parent)


def append_line(path: Path, entry: Any) -> None:
    """Append an object as one line of JSON, which is on the disk then."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(entry) + "\n")
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Block until the names in a folder are on the disk."""
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object of a file; an empty one where there is none or it is not whole."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
