"""Log of what a pretended card was asked for beyond computing: copies, waits and operations that mix devices."""

from __future__ import annotations

import enum
import linecache
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).parents[3]
ENGINE = f"{ROOT / 'engine'}/"


class Kind(enum.Enum):
    """Kind of what a card does besides launching kernels."""

    UPLOAD = "host to device"
    DOWNLOAD = "device to host"
    READ = "a value read by the host"
    SEARCH = "a shape that depends on values"
    MIXED = "host and device tensors in one operation"
    FOREIGN_RANDOM = "random numbers of another device's generator"


FAULTS = (Kind.MIXED, Kind.FOREIGN_RANDOM)


@dataclass(frozen=True, slots=True)
class Asked:
    """One entry: an operation of torch, and the line of the engine that called it."""

    kind: Kind
    operation: str
    line: str
    is_captured: bool = False

    def __str__(self) -> str:
        return f"{self.kind.value}: {self.operation} at {self.line}"


@dataclass(slots=True)
class CardLog:
    """Entries in their order. `is_capturing` is set while what runs would be captured as a graph."""

    entries: list[Asked] = field(default_factory=list)
    is_capturing: bool = False
    num_transfers: int = 0
    """Copies of weights by the device itself, which are asynchronous."""

    def add(self, kind: Kind, operation: str) -> Asked:
        entry = Asked(kind, operation, calling_line(), self.is_capturing)
        self.entries.append(entry)
        return entry

    @property
    def faults(self) -> list[str]:
        """Entries for which a real device raises an error."""
        return _counted(entry for entry in self.entries if entry.kind in FAULTS)

    def take_captured(self) -> list[str]:
        """Return the entries made while the log was capturing, and forget them."""
        found = _counted(entry for entry in self.entries if entry.is_captured)
        self.entries = [entry for entry in self.entries if not entry.is_captured]
        return found

    @property
    def waits(self) -> list[Asked]:
        """Entries for which the host waits: every read, and every copy, since none is from pinned memory."""
        return [entry for entry in self.entries if entry.kind not in FAULTS and not entry.is_captured]

    @contextmanager
    def capturing(self) -> Iterator[None]:
        """Mark the entries that come while the context is open as captured ones."""
        was, self.is_capturing = self.is_capturing, True
        try:
            yield
        finally:
            self.is_capturing = was


def _counted(entries: Iterator[Asked]) -> list[str]:
    counts: dict[str, int] = {}
    for entry in entries:
        counts[str(entry)] = counts.get(str(entry), 0) + 1
    return [f"{count} × {text}" for text, count in counts.items()]


def calling_line() -> str:
    """Return file, line and text of the innermost call in the engine, else in what is no part of torch or this log."""
    frame: FrameType | None = sys._getframe(1)
    outside = None
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(ENGINE):
            return _line(frame)
        if outside is None and name not in OWN_FILES and "/torch/" not in name:
            outside = frame
        frame = frame.f_back
    return "?" if outside is None else _line(outside)


OWN_FILES = (__file__, str(Path(__file__).with_name("rules.py")))


def _line(frame: FrameType) -> str:
    name = frame.f_code.co_filename
    return f"{name.removeprefix(f'{ROOT}/')}:{frame.f_lineno} {linecache.getline(name, frame.f_lineno).strip()}"
