"""ClaimedOutputs: files in the engine's output folder that jobs have claimed, and their removal from that folder.

It is active only with KEEP_ENGINE_OUTPUT=false and an engine of our own. Files that no job of ours made are never
removed. Two failures are prevented:

- The engine answers a prompt from its cache and names a removed file: it is found in the job that claimed it.
- The engine numbers its next file by the highest existing number and reuses a removed one: the highest file of each
  name stays until no job is at the engine.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path

REMEMBERED = 10_000

_Family = tuple[Path, str]


class ClaimedOutputs:
    """Claimed output files. They change only on the event loop, so no prompt is sent between a check and a removal."""

    def __init__(self, *, keeps: bool) -> None:
        self._keeps = keeps
        self._holders: OrderedDict[Path, Path] = OrderedDict()  # file of the engine -> the same file of a job
        self._highest: OrderedDict[_Family, Path] = OrderedDict()

    def holder_of(self, origin: Path) -> Path | None:
        """Return the job's path of a file that was removed from the engine's folder; None if it is not claimed."""
        return self._holders.get(origin)

    def claim(self, origin: Path, held_at: Path) -> None:
        """Record that a job has a file.

        The file is removed from the engine's folder once a file with a higher number exists.
        """
        if self._keeps:
            return
        self._holders[origin] = held_at
        self._holders.move_to_end(origin)
        while len(self._holders) > REMEMBERED:
            self._holders.popitem(last=False)
        family = family_of(origin)
        highest = self._highest.get(family)
        if highest is None or numbers_of(origin) > numbers_of(highest):
            self._highest[family] = origin
        while len(self._highest) > REMEMBERED:
            self._highest.popitem(last=False)  # its file is not removed
        for path in (highest, origin):
            if path is not None and path != self._highest.get(family):
                _remove(path)

    def remove_all(self) -> None:
        """Remove the remaining files, when no job is at the engine."""
        for path in self._highest.values():
            _remove(path)
        self._highest.clear()


def family_of(path: Path) -> _Family:
    """Return the key of the files that are numbered together."""
    return path.parent, re.sub(r"\d+", "#", path.name)


def numbers_of(path: Path) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", path.name))


def _remove(path: Path) -> None:
    with suppress(OSError):  # already removed, or not permitted
        path.unlink()
