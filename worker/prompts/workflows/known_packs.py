"""Packs of custom nodes by the names of their classes, read from `known_packs.toml`."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any


@dataclass(frozen=True, slots=True)
class KnownPack:
    """A pack and where it comes from. `reason`: `workflow` where the page noted it, `name` by the class's name."""

    name: str
    url: str = ""
    reason: str = "name"


def find_pack(class_type: str, noted: str = "") -> KnownPack | None:
    """Return the pack that has a node class; None where neither the page nor the class's name tells it.

    `noted` is the id or the repository that the page noted with the node.

    >>> find_pack("VHS_LoadVideo").name, find_pack("Reroute+").name
    ('ComfyUI-VideoHelperSuite', 'ComfyUI_essentials')
    """
    if noted:
        return _noted(noted)
    index = _index()
    name = index.classes.get(class_type) or index.by_part(class_type)
    return None if name is None else KnownPack(name, _tables()[name]["url"])


@dataclass(frozen=True, slots=True)
class _Index:
    """Names of packs by classes, by beginnings and ends of classes, and by their own short names in lower case."""

    classes: Mapping[str, str]
    prefixes: Mapping[str, str]
    suffixes: Mapping[str, str]
    short: Mapping[str, str]

    def by_part(self, class_type: str) -> str | None:
        """Return the pack with the longest beginning or end of a class, of several the last by name."""
        found: list[tuple[int, str]] = []
        for length in range(1, min(len(class_type), _longest_part()) + 1):
            for table, part in ((self.prefixes, class_type[:length]), (self.suffixes, class_type[-length:])):
                if part in table:
                    found.append((length, table[part]))
        return max(found)[1] if found else None


@cache
def _index() -> _Index:
    classes: dict[str, str] = {}
    prefixes: dict[str, str] = {}
    suffixes: dict[str, str] = {}
    short: dict[str, str] = {}
    for name, pack in _tables().items():
        short.setdefault(name.lower(), name)
        for class_type in pack.get("classes", ()):
            classes.setdefault(class_type, name)
        for table, parts in ((prefixes, pack.get("prefixes", ())), (suffixes, pack.get("suffixes", ()))):
            for part in parts:
                table[part] = max(name, table.get(part, ""))
    return _Index(classes, prefixes, suffixes, short)


@cache
def _longest_part() -> int:
    return max((len(part) for table in (_index().prefixes, _index().suffixes) for part in table), default=0)


def _noted(noted: str) -> KnownPack:
    """Return the pack that a page noted, by its id in the registry or as `owner/repository`."""
    name = _index().short.get(noted.rpartition("/")[2].lower())
    if name is not None:
        return KnownPack(name, _tables()[name]["url"], "workflow")
    url = f"https://github.com/{noted}" if noted.count("/") == 1 else ""
    return KnownPack(noted, url, "workflow")


@cache
def _tables() -> Mapping[str, Mapping[str, Any]]:
    return tomllib.loads((files("darkroom.worker.prompts.workflows") / "known_packs.toml").read_text(encoding="utf-8"))
