"""Hash of a pack's files, and the mark that a sync leaves beside them."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

MARK = ".darkroom-pack.json"
SKIPPED_FOLDERS = frozenset({".git", "__pycache__"})
CHUNK_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class PackMark:
    """Origin of a pack that a sync installed, or an installation by name.

    `sha256` is of its tree as fetched, `installed_sha256` of its tree after its `install.py`, empty until that has run.
    `by_name` is True until a sync takes the pack over: no manifest ever had it, so none that lacks it removes it.
    """

    source: str
    revision: str
    sha256: str
    installed_sha256: str = ""
    by_name: bool = False

    @property
    def tree(self) -> str:
        """The hash of the tree as it should be now."""
        return self.installed_sha256 or self.sha256

    def has_origin(self, source: str, revision: str, sha256: str) -> bool:
        """Return True for a pack that was fetched from there with this tree, whether or not its `install.py` ran."""
        return (self.source, self.revision, self.sha256) == (source, revision, sha256)

    def write(self, folder: Path) -> None:
        (folder / MARK).write_text(json.dumps(asdict(self), indent=1) + "\n", "utf-8")


def read_mark(folder: Path) -> PackMark | None:
    """Return the mark in a pack's folder; None for a pack that no sync put there."""
    try:
        return PackMark(**json.loads((folder / MARK).read_text("utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def tree_sha256(folder: Path) -> str:
    """Return the SHA-256 over the names and contents of a pack's files, without `.git`, `__pycache__` and the mark."""
    digest = hashlib.sha256()
    for file in sorted(_files(folder), key=lambda path: path.relative_to(folder).as_posix()):
        name = file.relative_to(folder).as_posix()
        digest.update(f"{len(name.encode())} {name} ".encode())
        digest.update(_content_sha256(file).encode())
    return digest.hexdigest()


def _files(folder: Path) -> Iterator[Path]:
    for place, folders, names in os.walk(folder):
        links = [name for name in folders if Path(place, name).is_symlink()]
        folders[:] = [name for name in folders if name not in SKIPPED_FOLDERS and name not in links]
        for name in (*names, *links):
            path = Path(place, name)
            if not (name == MARK and path.parent == folder) and not name.endswith(".pyc"):
                yield path


def _content_sha256(file: Path) -> str:
    if file.is_symlink():
        return hashlib.sha256(b"link " + os.readlink(file).encode()).hexdigest()
    digest = hashlib.sha256()
    with file.open("rb") as content:
        while chunk := content.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()
