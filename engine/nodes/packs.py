"""Which packs of custom nodes lie on the disk. Without torch, so that listing them and their requirements is quick."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Pack:
    """`path` is the folder or the file."""

    name: str
    path: Path

    @property
    def module_name(self) -> str:
        """As ComfyUI names a pack's module: its path, without dots."""
        return str(self.path.with_suffix("") if self.path.is_file() else self.path).replace(".", "_x_")


def find_packs(folders: Iterable[Path]) -> list[Pack]:
    """The packs of these folders, by name; those that end in `.disabled` and what is hidden are not among them."""
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
