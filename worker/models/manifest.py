"""Manifest of model files: the built-in one, `known.toml`, with the operator's `models.toml` over it.

A table is a file, or, with `files`, a set of files. A table of the operator's with the name of a built-in one changes
the fields it has; an empty one only asks for the file.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from darkroom.contract.missing_file import unreadable_file
from darkroom.contract.nearest import nearest_names
from darkroom.worker.models.entry import ModelEntry, find_kind_problem, find_name_problem
from darkroom.worker.models.errors import ManifestInvalid, UnknownModel
from darkroom.worker.models.foreign import FOREIGN_SUFFIXES
from darkroom.worker.models.sources import Source, parse_source

FILES = "files"  # key of a set
MAX_ENTRIES = 10_000
MAX_NEAREST = 3
GB = 1_000_000_000
MAX_MANIFEST_BYTES = 16 * 1024 * 1024


class _FileTable(BaseModel):
    """The fields of a file's table."""

    model_config = ConfigDict(extra="forbid", strict=True)

    label: str = ""
    kind: str
    name: str = ""
    sources: Annotated[list[str], Field(min_length=1)]
    size_bytes: Annotated[int, Field(gt=0)] | None = None
    sha256: Annotated[str, Field(pattern=r"^[0-9a-fA-F]{64}$")] | None = None
    about_gb: Annotated[float, Field(gt=0)] | None = None
    licence: str = ""
    families: list[str] = []
    optional: bool = False


class _SetTable(BaseModel):
    """The fields of a set's table."""

    model_config = ConfigDict(extra="forbid", strict=True)

    label: str = ""
    files: Annotated[list[str], Field(min_length=1)]


@dataclass(frozen=True, slots=True)
class ModelSet:
    """A model of several files, each an entry of its own."""

    label: str
    files: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Manifest:
    """Entries by id, and sets of them. `asked_ids` are those of the operator's own file."""

    entries: Mapping[str, ModelEntry] = field(default_factory=dict)
    sets: Mapping[str, ModelSet] = field(default_factory=dict)
    asked_ids: frozenset[str] = frozenset()

    def named(self, name: str) -> tuple[ModelEntry, ...]:
        """Return the files of an entry, of a set, or with a file name. Raises UnknownModel."""
        if name in self.sets:
            return tuple(self.entries[item] for item in self.sets[name].files)
        if name in self.entries:
            return (self.entries[name],)
        by_file = tuple(entry for entry in self.entries.values() if name in (entry.name, entry.place))
        if by_file:
            return by_file[:1]
        known = (*self.sets, *self.entries)
        nearest = nearest_names(name, known, limit=MAX_NEAREST) or tuple(
            item for item in known if item.startswith(name.lower())
        )
        hint = f" (did you mean {' or '.join(nearest[:MAX_NEAREST])}?)" if nearest else ""
        listed = "expected one that `darkroom models known` lists"
        raise UnknownModel(f"models fetch: unknown model; got {name!r}{hint}, {listed}")

    def required(self) -> tuple[ModelEntry, ...]:
        """Return the files that the operator's manifest asks for and does not call optional."""
        ids = dict.fromkeys(
            item for name in self.asked_ids for item in (self.sets[name].files if name in self.sets else (name,))
        )
        return tuple(entry for name, entry in self.entries.items() if name in ids and not entry.is_optional)

    def find(self, kinds: Iterable[str], name: str) -> ModelEntry | None:
        """Return the entry of a file that a loader names, by the folders in which the loader looks; none: all.

        A name with other subfolders than the entry's is another file. None without one.
        """
        looked_in = set(kinds)
        plain = name.replace("\\", "/")
        return next((item for item in self._by_name().get(plain, ()) if not looked_in or item.kind in looked_in), None)

    def _by_name(self) -> Mapping[str, list[ModelEntry]]:
        found: dict[str, list[ModelEntry]] = {}
        for entry in self.entries.values():
            found.setdefault(entry.name, []).append(entry)
        return found


@cache
def built_in_manifest() -> Manifest:
    """Return the manifest of well-known files that comes with the program."""
    text = (files("darkroom.worker.models") / "known.toml").read_text(encoding="utf-8")
    return replace(_parse(tomllib.loads(text), "known.toml"), asked_ids=frozenset())


def load_manifest(path: Path | None) -> Manifest:
    """Return the built-in manifest with the operator's file over it; None is no file. Raises ManifestInvalid.

    The file may be another tool's, told by its suffix.
    """
    if path is None:
        return built_in_manifest()
    if path.suffix in FOREIGN_SUFFIXES:
        from darkroom.worker.models.import_manifest import read_foreign_file  # PyYAML is 1 MB of the front's memory

        return parse_manifest(read_foreign_file(path).models, path.name)
    return parse_manifest(_read(path), path.name)


def parse_manifest(tables: Mapping[str, Any], shown: str) -> Manifest:
    """Return the built-in manifest with parsed tables over it. Raises ManifestInvalid with every problem."""
    own = tomllib.loads((files("darkroom.worker.models") / "known.toml").read_text(encoding="utf-8"))
    merged = dict(own)
    for name, table in tables.items():
        is_change = isinstance(table, Mapping) and isinstance(own.get(name), Mapping)
        merged[name] = {**own[name], **table} if is_change else table
    manifest = _parse(merged, shown)
    return replace(manifest, asked_ids=frozenset(tables))


def _read(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > MAX_MANIFEST_BYTES:
            raise ManifestInvalid(f"{path}: is over {MAX_MANIFEST_BYTES} bytes")
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ManifestInvalid(f"{path}: {unreadable_file(path, error)}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ManifestInvalid(f"{path}: is not TOML: {error}") from None


def _parse(tables: Mapping[str, Any], shown: str) -> Manifest:
    entries: dict[str, ModelEntry] = {}
    sets: dict[str, ModelSet] = {}
    problems: list[str] = []
    for name, table in tables.items():
        try:
            if isinstance(table, Mapping) and FILES in table:
                given = _SetTable.model_validate(table)
                sets[name] = ModelSet(given.label or name, tuple(given.files))
            else:
                entries[name] = _entry(name, table)
        except ValidationError as error:
            problems += [f"[{name}] {_explain(item)}" for item in error.errors(include_url=False)]
        except ValueError as error:
            problems.append(f"[{name}] {error}")
    problems += [
        f"[{name}] files: no such entry; got {item!r}"
        for name, items in sets.items()
        for item in items.files
        if item not in entries and item not in tables
    ]
    problems += _find_clashes(entries.values())
    if len(tables) > MAX_ENTRIES:
        problems = [f"too many entries; got {len(tables)}, expected at most {MAX_ENTRIES}"]
    if problems:
        raise ManifestInvalid(f"{shown}: {'; '.join(problems[:20])}")
    return Manifest(entries, sets, frozenset(tables))


def _entry(name: str, table: object) -> ModelEntry:
    """Return the entry of a table. Raises ValueError, of which ValidationError is one."""
    given = _FileTable.model_validate(table)
    sources: list[Source] = []
    for item in given.sources:
        try:
            sources.append(parse_source(item))
        except ValueError as error:
            raise ValueError(f"sources: {error}") from None
    file_name = given.name or next((source.file_name for source in sources if source.file_name), "")
    if not file_name:
        raise ValueError("name: missing; expected the file's name below its folder, which these sources do not give")
    if problem := find_name_problem(file_name):
        raise ValueError(f"name: {problem}")
    if problem := find_kind_problem(given.kind):
        raise ValueError(f"kind: {problem}")
    return ModelEntry(
        id=name,
        label=given.label or file_name,
        kind=given.kind,
        name=file_name,
        sources=tuple(sources),
        size_bytes=given.size_bytes,
        sha256=given.sha256.lower() if given.sha256 else None,
        licence=given.licence,
        families=tuple(given.families),
        is_optional=given.optional,
        about_bytes=None if given.about_gb is None else round(given.about_gb * GB),
    )


def _find_clashes(entries: Iterable[ModelEntry]) -> list[str]:
    first: dict[str, ModelEntry] = {}
    problems = []
    for entry in entries:
        other = first.setdefault(entry.place, entry)
        if other is not entry and other.sha256 != entry.sha256:
            problems.append(f"[{entry.id}] name: another entry has this place; got {entry.place}, as [{other.id}]")
    return problems


def _explain(item: Mapping[str, Any]) -> str:
    where = ".".join(str(part) for part in item["loc"]) or "table"
    got = f"; got {str(item['input'])[:80]!r}" if item["type"] not in ("missing", "extra_forbidden") else ""
    hint = ""
    if item["type"] == "extra_forbidden":
        hint = f"; expected one of {', '.join(_FileTable.model_fields)}"
    return f"{where}: {item['msg']}{got}{hint}"
