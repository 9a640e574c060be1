"""Packs known by name: the address of each, and the commit at which it was tried with this engine."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from darkroom.contract.nearest import nearest_name
from darkroom.engine.comfy.packs.sync.errors import PackUnknown
from darkroom.engine.comfy.packs.sync.fetch import REGISTRY, fetch_pack
from darkroom.engine.comfy.packs.sync.manifest import PackEntry, read_packs
from darkroom.engine.comfy.packs.sync.tree import PackMark, tree_sha256

KNOWN_PACKS = Path(__file__).with_name("known_packs.toml")


def known_pack(name: str, known: Path = KNOWN_PACKS) -> PackEntry:
    """Return the known pack of a name; case, and `-` for `_`, do not matter. Raises PackUnknown with the nearest."""
    packs = {entry.name: entry for entry in read_packs(known)}
    found = next((pack for pack in packs if _folded(pack) == _folded(name)), None)
    if found is None:
        nearest = nearest_name(name, packs, by_start=True)
        meant = f" (did you mean {nearest!r}?)" if nearest else ""
        raise PackUnknown(
            f"{name}: no such folder, and no pack is known by that name{meant}; expected the folder of a pack, or a "
            "name that `darkroom nodes list --known` prints"
        )
    return packs[found]


def fetch_known(entry: PackEntry, custom_nodes: Path) -> Path:
    """Fetch a pack at its commit into `custom_nodes`, unless a folder of its name is there; return the folder.

    The folder gets the mark of a sync, so that a later one with the pack in its manifest takes it over. Raises
    PackNotFetched; then nothing is left behind.
    """
    folder = custom_nodes / entry.name
    if folder.exists():
        return folder
    custom_nodes.mkdir(parents=True, exist_ok=True)
    # Within custom_nodes/, so that renaming stays within one disk; hidden folders are no packs.
    staging = Path(tempfile.mkdtemp(prefix=".install-", dir=custom_nodes))
    try:
        fetched = fetch_pack(entry, staging / entry.name, revision=entry.revision, registry=REGISTRY, store=None)
        mark = PackMark(entry.source, fetched.commit, tree_sha256(fetched.folder), by_name=True)
        mark.write(fetched.folder)
        fetched.folder.rename(folder)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return folder


def _folded(name: str) -> str:
    return name.lower().replace("-", "_")
