"""`extra_model_paths.yaml`: further folders of models, as ComfyUI reads them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from darkroom.engine.models.files.folders import LEGACY_KINDS

BASE_PATH = "base_path"
IS_DEFAULT = "is_default"


@dataclass(frozen=True, slots=True)
class ExtraFolder:
    """A folder of one kind. A default one is searched before all others, and new files go there."""

    kind: str
    path: Path
    is_default: bool = False


def read_extra_model_paths(path: Path) -> list[ExtraFolder]:
    """Read the folders that a file names, in its order.

    The file is groups of `kind: folder`; a kind's folders are lines of one text, or a list. `base_path` is what
    relative folders of a group are below, `is_default` makes its folders default ones. Raises ValueError with the file
    and the line or the name that is wrong.
    """
    import yaml  # only an engine with such a file needs it

    try:
        groups = yaml.safe_load(path.read_text("utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark is not None else ""
        raise ValueError(f"{path}{line}: no YAML; {getattr(error, 'problem', None) or error}") from None
    return [folder for name, group in _mapping(groups, str(path)).items() for folder in _folders(name, group, path)]


def _folders(group_name: str, group: object, path: Path) -> Iterator[ExtraFolder]:
    group = _mapping(group, f"{path}, group {group_name!r}")
    base = Path(os.path.expandvars(os.path.expanduser(str(group.get(BASE_PATH) or ""))))
    is_default = group.get(IS_DEFAULT) is True
    for kind, given in group.items():
        if kind not in (BASE_PATH, IS_DEFAULT):
            for name in _names(given, f"{path}, group {group_name!r}, {kind}"):
                folder = Path(os.path.normpath(path.parent / base / name))
                yield ExtraFolder(LEGACY_KINDS.get(kind, kind), folder, is_default)


def _mapping(value: object, where: str) -> Mapping[str, object]:
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise ValueError(f"{where}: no lines of 'name: folder'; got {str(value)[:200]!r}, expected a mapping")
    return value


def _names(given: Any, where: str) -> list[str]:
    names = given.splitlines() if isinstance(given, str) else given if isinstance(given, list) else [given]
    if not all(isinstance(name, str) or name is None for name in names):
        raise ValueError(f"{where}: no folders; got {str(given)[:200]!r}, expected text, lines of text or a list")
    return [name.strip() for name in names if name is not None and name.strip()]
