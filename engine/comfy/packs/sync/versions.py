"""Comparison of the packs in `custom_nodes/` with `packs.toml` and its lock."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from darkroom.engine.comfy.packs.layer import layer_folders
from darkroom.engine.comfy.packs.sync.install_script import INSTALL_SCRIPT
from darkroom.engine.comfy.packs.sync.lock import PacksLock, lock_path, read_lock
from darkroom.engine.comfy.packs.sync.manifest import PackEntry, manifest_path, read_packs
from darkroom.engine.comfy.packs.sync.tree import read_mark, tree_sha256

State = Literal["good", "missing", "other version", "not synced", "not installed", "changed", "no packages"]


@dataclass(frozen=True, slots=True)
class PackVersion:
    """A pack of the manifest as it is on disk.

    `expected` is the locked commit, or the manifest's revision without a lock; `found` is that of the folder.
    """

    name: str
    source: str
    expected: str
    found: str
    state: State


def pack_versions(base_directory: Path, *, reads_files: bool = False) -> list[PackVersion]:
    """Return the state of each pack of the manifest; none without a manifest. Raises PacksInvalid.

    Without `reads_files` only the marks of syncs are compared, which does not notice a file that was changed later.
    """
    path = manifest_path(base_directory)
    if not path.is_file():
        return []
    lock = read_lock(lock_path(base_directory))
    return [_version(entry, lock, base_directory, reads_files=reads_files) for entry in read_packs(path)]


def _version(entry: PackEntry, lock: PacksLock, base_directory: Path, *, reads_files: bool) -> PackVersion:
    folder = base_directory / "custom_nodes" / entry.name
    locked = lock.packs.get(entry.name)
    expected = locked.commit if locked else entry.revision
    mark = read_mark(folder)
    state: State
    if not folder.is_dir():
        state = "missing"
    elif mark is None or locked is None or locked.asked != entry.shown:
        state = "not synced"
    elif (mark.revision, mark.sha256) != (locked.commit, locked.sha256):
        state = "other version"
    elif entry.run_install and not mark.installed_sha256 and (folder / INSTALL_SCRIPT).is_file():
        state = "not installed"
    elif reads_files and tree_sha256(folder) != mark.tree:
        state = "changed"
    elif lock.packages and not layer_folders(base_directory):
        state = "no packages"
    else:
        state = "good"
    return PackVersion(entry.name, entry.source, expected, mark.revision if mark else "", state)
