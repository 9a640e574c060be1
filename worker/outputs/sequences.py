"""Numbered images that a node lists under one name with FFmpeg's placeholder, as `frames_00001.%03d.png`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PLACEHOLDER = re.compile(r"%0?([1-9]?)d")
FIRST = 1
"""Number of the first image, as FFmpeg counts."""


@dataclass(frozen=True, slots=True)
class NameSequence:
    """Names that differ in a number of at least `num_digits` digits between `before` and `after`."""

    before: str
    num_digits: int
    after: str

    def name(self, number: int) -> str:
        return f"{self.before}{number:0{self.num_digits}}{self.after}"

    def names(self) -> Iterator[str]:
        """Yield the names without an end."""
        number = FIRST
        while True:
            yield self.name(number)
            number += 1

    def names_in(self, folder: Path) -> list[str]:
        """Return the names from the first number on, up to one that is no file of the folder."""
        found: list[str] = []
        for name in self.names():
            if not (folder / name).is_file():
                return found
            found.append(name)
        raise AssertionError("unreachable: the names do not end")


def sequence_of(name: str) -> NameSequence | None:
    """Return the names that a name stands for, or None for a plain one.

    >>> sequence_of("a_00001.%03d.png").name(7)
    'a_00001.007.png'
    """
    found = PLACEHOLDER.search(name)
    return None if found is None else NameSequence(name[: found.start()], int(found[1] or 1), name[found.end() :])
