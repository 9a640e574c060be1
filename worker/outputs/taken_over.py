"""TakenOver: files of the engine's output folder that jobs hold links to, and which of them may leave that folder.

Only with KEEP_ENGINE_OUTPUT=false and an engine of our own; files that no job of ours made are never touched. Two
things could go wrong, and cannot:
- the engine answers a prompt from its cache and names a file that has left: it is found at the job that took it over;
- the engine numbers its next file, by the highest number there is, as one that has left: so the highest of each name
  stays until no job is at the engine.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path

REMEMBERED = 10_000

_Family = tuple[Path, str]


class TakenOver:
    """Changed on the event loop alone, so that between a look at the jobs and a removal no prompt is sent."""

    def __init__(self, *, keeps: bool) -> None:
        self._keeps = keeps
        self._holders: OrderedDict[Path, Path] = OrderedDict()  # file of the engine -> the same file of a job
        self._highest: OrderedDict[_Family, Path] = OrderedDict()

    def holder_of(self, origin: Path) -> Path | None:
        """Where a file is that has left the engine's folder, if its job is still there."""
        return self._holders.get(origin)

    def take_over(self, origin: Path, held_at: Path) -> None:
        """A job has a file now. It leaves the engine's folder when one with a higher number is there."""
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
            self._highest.popitem(last=False)  # that file stays
        for path in (highest, origin):
            if path is not None and path != self._highest.get(family):
                _remove(path)

    def remove_all(self) -> None:
        """No job is at the engine: the last ones leave too."""
        for path in self._highest.values():
            _remove(path)
        self._highest.clear()


def family_of(path: Path) -> _Family:
    """Files that are numbered together."""
    return path.parent, re.sub(r"\d+", "#", path.name)


def numbers_of(path: Path) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", path.name))


def _remove(path: Path) -> None:
    with suppress(OSError):  # gone, or not ours to remove: it stays
        path.unlink()
