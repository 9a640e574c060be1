"""`models.lock.toml`: hashes and sizes learnt at the first download of files whose manifest gives none."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from filelock import FileLock

from darkroom.worker.models.entry import ModelEntry
from darkroom.worker.models.errors import ManifestInvalid

HEADER = (
    "# Written by `darkroom models fetch` and `lock`. Each file is the one that was first downloaded under its name.\n"
)


@dataclass(frozen=True, slots=True)
class LockedFile:
    """Content of a file: its SHA-256, its size, and the source that gave it."""

    sha256: str
    size_bytes: int
    source: str = ""


def lock_path_of(manifest: Path | None, base_directory: Path) -> Path:
    """Return the place of the lock file: beside the manifest, else in the base directory."""
    if manifest is None:
        return base_directory / "models.lock.toml"
    return manifest.with_name(f"{manifest.stem}.lock.toml")


def read_lock(path: Path) -> dict[str, LockedFile]:
    """Return the locked files by their place below `models/`; empty without a file. Raises ManifestInvalid."""
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ManifestInvalid(f"{path}: cannot be read: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ManifestInvalid(f"{path}: is not TOML: {error}") from None
    try:
        return {
            place: LockedFile(str(table["sha256"]), int(table["size_bytes"]), str(table.get("source", "")))
            for place, table in tables.items()
        }
    except (KeyError, TypeError, ValueError):
        raise ManifestInvalid(f"{path}: a table lacks sha256 or size_bytes; remove the file to write it anew") from None


def add_to_lock(path: Path, new: Mapping[str, LockedFile]) -> None:
    """Write files to the lock, over those under the same places. Other processes may add to it meanwhile."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_name(f".{path.name}.guard")):
        locked = {**read_lock(path), **new}
        partial = path.with_name(f".{path.name}.new")
        partial.write_text(HEADER + "".join(_table(place, locked[place]) for place in sorted(locked)), encoding="utf-8")
        os.replace(partial, path)


def with_locked(entry: ModelEntry, locked: Mapping[str, LockedFile]) -> ModelEntry:
    """Return the entry with the hash and size of the lock where the manifest gives none."""
    found = locked.get(entry.place)
    if found is None or entry.sha256 is not None:
        return entry
    return replace(entry, sha256=found.sha256, size_bytes=entry.size_bytes or found.size_bytes)


def _table(place: str, file: LockedFile) -> str:
    lines = [f"\n[{json.dumps(place, ensure_ascii=False)}]", f'sha256 = "{file.sha256}"']
    lines.append(f"size_bytes = {file.size_bytes}")
    if file.source:
        lines.append(f"source = {json.dumps(file.source, ensure_ascii=False)}")
    return "\n".join(lines) + "\n"
