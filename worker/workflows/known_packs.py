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
    table = _tables()
    for name, pack in table.items():
        if class_type in pack.get("classes", ()):
            return KnownPack(name, pack["url"])
    fitting = [
        (len(part), name)
        for name, pack in table.items()
        for part, fits in (
            *((item, class_type.startswith(item)) for item in pack.get("prefixes", ())),
            *((item, class_type.endswith(item)) for item in pack.get("suffixes", ())),
        )
        if fits
    ]
    if not fitting:
        return None
    name = max(fitting)[1]
    return KnownPack(name, table[name]["url"])


def _noted(noted: str) -> KnownPack:
    """Return the pack that a page noted, by its id in the registry or as `owner/repository`."""
    short = noted.rpartition("/")[2].lower()
    for name, pack in _tables().items():
        if name.lower() == short:
            return KnownPack(name, pack["url"], "workflow")
    url = f"https://github.com/{noted}" if noted.count("/") == 1 else ""
    return KnownPack(noted, url, "workflow")


@cache
def _tables() -> Mapping[str, Mapping[str, Any]]:
    return tomllib.loads((files("worker.workflows") / "known_packs.toml").read_text(encoding="utf-8"))
