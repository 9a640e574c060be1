"""PartFile: a file under way, with a journal beside it of the blocks that it has.

A block is written to the file before its number is added to the journal, so a process killed between the two downloads
this block again and nothing else. The first line of the journal describes the file. A last line that was cut off, and
blocks beyond the end, are ignored. After a loss of power the file may lack blocks of the journal: the check of its
SHA-256 finds that.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from darkroom.contract.downloads import CHECKED, DOWNLOADS, JOURNAL_ENDING, PART_ENDING

BLOCK_BYTES = 1024 * 1024
"""Unit of the journal: the most that is downloaded twice over one connection."""

MAX_JOURNAL_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class PartHeader:
    """The content that a part is of. `identity`: its SHA-256, or what else tells contents apart at its source."""

    identity: str
    size_bytes: int
    sha256: str | None
    block_bytes: int = BLOCK_BYTES


@dataclass(frozen=True, slots=True)
class Run:
    """Bytes `start` to `stop` (exclusive), both at the edge of a block or at the end."""

    start: int
    stop: int


class PartFile:
    """An open part. Only one process at a time may have it: its owner holds a file lock.

    `write` and `read` are called from threads, which a cancelled download leaves behind: after `close` both raise
    ValueError, because the system may have given their descriptors to another file.
    """

    def __init__(self, path: Path, header: PartHeader, done: bytearray) -> None:
        self.path = path
        self.header = header
        self._done = done  # a byte for each block: 1 if it is there
        self._num_done = sum(done)
        self._prefix = 0  # blocks from the start without a gap
        self._lock = threading.Lock()
        self._data = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._journal = os.open(journal_path(path), os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._advance()

    @staticmethod
    def resume(path: Path) -> PartFile | None:
        """Open a part that an earlier process left; None without a usable one."""
        found = _read_journal(path)
        if found is None:
            return None
        header, done, journal_bytes = found
        os.truncate(journal_path(path), journal_bytes)  # without half a line, which the next number would complete
        return PartFile(path, header, done)

    @staticmethod
    def peek(path: Path) -> tuple[int, int] | None:
        """Return the number of bytes of a part, and of the whole file; None without a usable part."""
        found = _read_journal(path)
        return None if found is None else (_done_bytes(found[0], found[1]), found[0].size_bytes)

    @staticmethod
    def create(path: Path, header: PartHeader) -> PartFile:
        """Begin a part in place of any earlier one. Raises OSError."""
        discard(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as file:
            file.truncate(header.size_bytes)
        journal_path(path).write_text(json.dumps(asdict(header)) + "\n", encoding="utf-8")
        return PartFile(path, header, bytearray(_num_blocks(header)))

    @property
    def done_bytes(self) -> int:
        size, block = self.header.size_bytes, self.header.block_bytes
        has_last = bool(self._done and self._done[-1])
        return self._num_done * block - ((len(self._done) * block - size) if has_last else 0)

    @property
    def prefix_bytes(self) -> int:
        """Bytes from the start without a gap."""
        return min(self._prefix * self.header.block_bytes, self.header.size_bytes)

    @property
    def is_complete(self) -> bool:
        return self._num_done == len(self._done)

    def missing(self, longest_bytes: int, within: Run | None = None) -> Iterator[Run]:
        """Yield the runs that are missing, in order and none longer than the given bytes."""
        block, size = self.header.block_bytes, self.header.size_bytes
        most = max(1, longest_bytes // block)
        stop_block = len(self._done) if within is None else -(-within.stop // block)
        at = 0 if within is None else within.start // block
        while at < stop_block:
            if self._done[at]:
                at += 1
                continue
            end = at + 1
            while end < stop_block and not self._done[end] and end - at < most:
                end += 1
            yield Run(at * block, min(end * block, size))
            at = end

    def write(self, start: int, data: bytes | bytearray | memoryview) -> None:
        """Write one whole block, the one that begins at `start`, and note it in the journal. Raises OSError."""
        number = start // self.header.block_bytes
        with self._lock:
            self._check_open()
            view, at = memoryview(data), start
            while view:
                written = os.pwrite(self._data, view, at)
                view, at = view[written:], at + written
            os.write(self._journal, b"%d\n" % number)
            if not self._done[number]:
                self._done[number] = 1
                self._num_done += 1
                self._advance()

    def read(self, start: int, num_bytes: int) -> bytes:
        """Return bytes of the file, fewer at its end. Raises OSError."""
        with self._lock:
            self._check_open()
            return os.pread(self._data, num_bytes, start)

    def close(self) -> None:
        with self._lock:
            for descriptor in (self._data, self._journal):
                if descriptor >= 0:
                    os.close(descriptor)
            self._data = self._journal = -1

    def _check_open(self) -> None:
        if self._data < 0:
            raise ValueError("the part is closed")

    def _advance(self) -> None:
        while self._prefix < len(self._done) and self._done[self._prefix]:
            self._prefix += 1


def journal_path(path: Path) -> Path:
    return path.with_name(path.name + JOURNAL_ENDING)


def mark_checked(path: Path) -> None:
    """Note in the journal of a complete part that its content is right. Raises OSError."""
    with journal_path(path).open("ab", buffering=0) as journal:
        journal.write(CHECKED + b"\n")


def discard(path: Path) -> None:
    """Remove a part and its journal, the journal first: without it the part counts for nothing."""
    journal_path(path).unlink(missing_ok=True)
    path.unlink(missing_ok=True)


def _read_journal(path: Path) -> tuple[PartHeader, bytearray, int] | None:
    """Return the header, the blocks that are there and the length of the whole lines; None without a usable part."""
    try:
        with journal_path(path).open("rb") as file:
            first, *lines = file.read(MAX_JOURNAL_BYTES).split(b"\n")
        header = PartHeader(**json.loads(first))
        is_usable = path.stat().st_size == header.size_bytes > 0 and header.block_bytes > 0
    except (OSError, ValueError, TypeError):
        return None
    if not is_usable:
        return None
    done = bytearray(_num_blocks(header))
    whole = lines[:-1]  # after the last line break is nothing, or half a number
    if CHECKED in whole:  # by a process that ended before the part got its name; it is checked once more
        whole = whole[: whole.index(CHECKED)]
    for line in whole:
        if line.isdigit() and int(line) < len(done):
            done[int(line)] = 1
    return header, done, sum(len(line) + 1 for line in (first, *whole))


def _done_bytes(header: PartHeader, done: bytearray) -> int:
    beyond = len(done) * header.block_bytes - header.size_bytes if done[-1] else 0
    return sum(done) * header.block_bytes - beyond


def _num_blocks(header: PartHeader) -> int:
    return -(-header.size_bytes // header.block_bytes)


def part_progress(models_directory: Path, place: str) -> tuple[int, int] | None:
    """Return the bytes of a file's part that are there, and of all; None without a part."""
    return PartFile.peek(part_path(models_directory, place))


def part_path(models_directory: Path, place: str) -> Path:
    return models_directory / DOWNLOADS / (place + PART_ENDING)
