"""Table of known models, read from `known.toml`."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from names.nearest import nearest_name
from worker.models.errors import UnknownModel

FILES = "files"  # key of a model of several files


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A file of a repository on the hub. `folder` is below `models/`. `size_bytes` and `sha256` None: any content.

    `file_name` is the path in the repository; its last part is the file's name here.
    """

    label: str
    repository: str
    file_name: str
    folder: str
    size_bytes: int | None = None
    sha256: str | None = None

    @property
    def local_name(self) -> str:
        """The file's name below its folder."""
        return self.file_name.rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class KnownSet:
    """A model of several files, each of them known by a name of its own."""

    label: str
    files: tuple[str, ...]


@cache
def known_models() -> Mapping[str, KnownModel]:
    """Return the known files by the names that `fetch` takes."""
    return {name: KnownModel(**entry) for name, entry in _table().items() if FILES not in entry}


@cache
def known_sets() -> Mapping[str, KnownSet]:
    """Return the known models of several files by the names that `fetch` takes."""
    return {
        name: KnownSet(str(entry["label"]), tuple(entry[FILES])) for name, entry in _table().items() if FILES in entry
    }


def known_files(name: str) -> tuple[KnownModel, ...]:
    """Return the files of a known model by its name. Raises UnknownModel."""
    single, sets = known_models(), known_sets()
    if name in sets:
        return tuple(single[item] for item in sets[name].files)
    if name in single:
        return (single[name],)
    known = (*sets, *single)
    nearest = nearest_name(name, known, by_start=True)
    hint = f"; did you mean {nearest}?" if nearest else ""
    raise UnknownModel(f"models fetch: unknown model; got {name!r}, expected one of {', '.join(known)}{hint}")


def _table() -> Mapping[str, Any]:
    return tomllib.loads((files("worker.models") / "known.toml").read_text(encoding="utf-8"))
