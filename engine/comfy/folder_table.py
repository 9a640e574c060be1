"""The engine's model folders in the form that packs read and change: kind -> (list of folders, endings).

A pack adds folders by changing what it reads (`table["loras"][0].append(path)`), so the lists and sets here write
through to `ModelFolders`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MutableMapping
from pathlib import Path
from typing import Any, SupportsIndex

from darkroom.engine.comfy.host import HOST

Entry = tuple[list[str], set[str]]


class FolderTable(MutableMapping[str, Entry]):
    def __getitem__(self, kind: str) -> Entry:
        folders = HOST.get().engine.folders
        return FolderList(kind, map(str, folders.roots(kind))), EndingSet(kind, folders.endings(kind))

    def __setitem__(self, kind: str, entry: Entry) -> None:
        folders = HOST.get().engine.folders
        folders.set_roots(kind, [Path(path) for path in entry[0]])
        if len(entry) > 1:
            folders.set_endings(kind, entry[1])

    def __delitem__(self, kind: str) -> None:
        HOST.get().engine.folders.forget(kind)

    def __iter__(self) -> Iterator[str]:
        return iter(HOST.get().engine.folders.kinds())

    def __len__(self) -> int:
        return len(HOST.get().engine.folders.kinds())


class FolderList(list[str]):
    def __init__(self, kind: str, paths: Iterable[str]) -> None:
        super().__init__(paths)
        self._kind = kind

    def _write(self) -> None:
        HOST.get().engine.folders.set_roots(self._kind, [Path(path) for path in self])

    def append(self, path: str) -> None:
        super().append(path)
        self._write()

    def extend(self, paths: Iterable[str]) -> None:
        super().extend(paths)
        self._write()

    def insert(self, index: SupportsIndex, path: str) -> None:
        super().insert(index, path)
        self._write()

    def remove(self, path: str) -> None:
        super().remove(path)
        self._write()

    def __setitem__(self, index: Any, path: Any) -> None:
        super().__setitem__(index, path)
        self._write()

    def __iadd__(self, paths: Iterable[str]) -> FolderList:  # type: ignore[override,misc]
        self.extend(paths)
        return self


class EndingSet(set[str]):
    def __init__(self, kind: str, endings: Iterable[str]) -> None:
        super().__init__(endings)
        self._kind = kind

    def _write(self) -> None:
        HOST.get().engine.folders.set_endings(self._kind, self)

    def add(self, ending: str) -> None:
        super().add(ending)
        self._write()

    def update(self, *endings: Iterable[str]) -> None:
        super().update(*endings)
        self._write()

    def __ior__(self, endings: Any) -> EndingSet:  # type: ignore[override,misc]
        self.update(endings)
        return self
