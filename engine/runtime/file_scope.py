"""The files that one run may read: its own, and what the operator has put into the input folder."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from darkroom.engine.errors import BadInputFile

FETCHED_FOLDER = "darkroom"  # in the input folder: files that requests brought


class ForeignFile(BadInputFile):
    """The file of another run, or of nobody."""

    code = "foreign_file"

    def __init__(self, name: str) -> None:
        super().__init__(
            f"{name!r}: a file of another job; expected one that came with the request, that this run has saved, or "
            f"that lies in the input folder outside {FETCHED_FOLDER}/"
        )


@dataclass(frozen=True, slots=True)
class FileScope:
    """Files that a run may read. `own` are names in the input folder, `shown` returns those its nodes have shown."""

    input: Path
    output: Path
    temp: Path
    own: frozenset[str]
    shown: Callable[[], Iterable[Mapping[str, Any]]]

    def check(self, path: Path, name: str, created: Collection[Path]) -> None:
        """Raise ForeignFile for a file that is neither the run's (`created` by it, say) nor the operator's."""
        if path not in created and self._is_shared(path) and path not in self._shown_paths():
            raise ForeignFile(name)

    def _is_shared(self, path: Path) -> bool:
        for folder in (self.output, self.temp):
            if path.is_relative_to(folder) and not self.input.is_relative_to(folder):
                return True
        if not path.is_relative_to(self.input):
            return True
        parts = path.relative_to(self.input).parts
        is_fetched = bool(parts) and parts[0].casefold() == FETCHED_FOLDER
        return is_fetched and "/".join(parts) not in self.own

    def _shown_paths(self) -> set[Path]:
        """Return the files that the run's nodes show, those of cached results among them."""
        folders = {"input": self.input, "output": self.output, "temp": self.temp}
        return {
            folders[item["type"]] / str(item.get("subfolder", "")) / str(item["filename"])
            for ui in self.shown()
            for items in ui.values()
            if isinstance(items, list | tuple)
            for item in items
            if isinstance(item, Mapping) and "filename" in item and item.get("type") in folders
        }
