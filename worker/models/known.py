"""Table of known models, read from `known.toml`."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from names.nearest import nearest_name
from worker.models.errors import UnknownModel


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A file of a repository on the hub. `folder` is below `models/`. `size_bytes` and `sha256` None: any content."""

    label: str
    repository: str
    file_name: str
    folder: str
    size_bytes: int | None = None
    sha256: str | None = None


@cache
def known_models() -> Mapping[str, KnownModel]:
    """Return the known models by the names that `fetch` takes."""
    table = tomllib.loads((files("worker.models") / "known.toml").read_text(encoding="utf-8"))
    return {name: KnownModel(**entry) for name, entry in table.items()}


def known_model(name: str) -> KnownModel:
    """Return a known model by its name. Raises UnknownModel."""
    known = known_models()
    if name not in known:
        nearest = nearest_name(name, known, by_start=True)
        hint = f"; did you mean {nearest}?" if nearest else ""
        raise UnknownModel(f"models fetch: unknown model; got {name!r}, expected one of {', '.join(known)}{hint}")
    return known[name]
