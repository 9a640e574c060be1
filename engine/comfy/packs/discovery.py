"""Discovery of custom node packs on disk. It does not import torch, so listing packs and requirements is fast."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Pack:
    """A pack of custom nodes. `path` is its folder or file."""

    name: str
    path: Path

    @property
    def module_name(self) -> str:
        """The module name that ComfyUI gives a pack: its path, without dots."""
        return str(self.path.with_suffix("") if self.path.is_file() else self.path).replace(".", "_x_")


def find_packs(folders: Iterable[Path]) -> list[Pack]:
    """Return the packs of these folders, by name, without hidden ones and those that end in `.disabled`."""
    found: dict[str, Pack] = {}
    for folder in folders:
        if not folder.is_dir():
            continue
        for path in sorted(folder.iterdir()):
            name = path.stem if path.is_file() else path.name
            is_pack = path.suffix == ".py" if path.is_file() else (path / "__init__.py").is_file()
            is_off = path.name.endswith(".disabled") or path.name.startswith((".", "__pycache__"))
            if is_pack and not is_off and path.name != "__init__.py":
                found.setdefault(name, Pack(name, path.resolve()))
    return list(found.values())
