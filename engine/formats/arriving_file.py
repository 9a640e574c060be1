"""A model file that is read while it is downloaded: the blocks that are there, by the journal beside its part.

Weights are copied into their place as their blocks come. Nothing computes with them before the download has checked the
whole file: `wait_until_checked` is the last step of a load.
"""

from __future__ import annotations

import json
import os
import threading
import time
import weakref
from pathlib import Path
from typing import BinaryIO

from darkroom.contract.downloads import CHECKED, DOWNLOADS, JOURNAL_ENDING, PART_ENDING
from darkroom.engine.cancel import current_check
from darkroom.engine.errors import DownloadEnded

LOOK_SECONDS = 0.01
READ_BYTES = 1 << 16

SizeAndTime = tuple[int, int]


def find_part(path: Path) -> Path | None:
    """Return the part of a file below a models folder that is being downloaded, None where there is none."""
    for models in path.parents:
        part = models / DOWNLOADS / path.relative_to(models)
        part = part.with_name(part.name + PART_ENDING)
        if part.is_file():
            return part
    return None


def stat_of(path: Path) -> os.stat_result:
    """Return the state of a file, or of its part while it is downloaded. Raises OSError."""
    try:
        return path.stat()
    except FileNotFoundError:
        part = find_part(path)
        try:
            if part is not None:
                return part.stat()
        except FileNotFoundError:  # it has just got its name
            pass
        return path.stat()


def open_arriving(path: Path) -> tuple[BinaryIO, ArrivingFile | None]:
    """Open a file, or its part while it is downloaded. Raises OSError."""
    try:
        return path.open("rb"), None
    except FileNotFoundError:
        part = find_part(path)
        if part is None:
            raise
    try:
        journal = part.with_name(part.name + JOURNAL_ENDING).open("rb", buffering=0)
        try:
            file = part.open("rb")
        except OSError:
            journal.close()
            raise
    except FileNotFoundError:
        return path.open("rb"), None  # it has just got its name
    try:
        return file, ArrivingFile(path.name, file, journal)
    except BaseException:
        file.close()
        raise


class ArrivingFile:
    """The download of an open part. Any thread may wait; waiting ends when the run that opened the file is cancelled.

    It takes over `journal`. Raises DownloadEnded where that is no journal of a download that goes on.
    """

    def __init__(self, name: str, file: BinaryIO, journal: BinaryIO) -> None:
        self.name = name
        self._check_cancelled = current_check()
        self._lock = threading.Lock()
        self._file_number = os.dup(file.fileno())
        self._journal_number = os.dup(journal.fileno())
        journal.close()
        for number in (self._file_number, self._journal_number):
            weakref.finalize(self, os.close, number)
        self._position = 0
        self._rest = b""
        self._block_bytes = 0
        self._done = bytearray()
        self.checked_as: SizeAndTime | None = None
        """Size and time of change of the whole file, None before it has been checked."""
        while not self._block_bytes:
            self._look()
            self._pause()

    def wait_for(self, start: int, end: int) -> None:
        """Wait until bytes `start` to `end` (exclusive) are there. Raises DownloadEnded, Interrupted."""
        first, last = start // self._block_bytes, -(-end // self._block_bytes)
        while self.checked_as is None and self._done.find(0, first, last) >= 0:
            self._look()
            self._pause()

    def wait_until_checked(self) -> None:
        """Wait until the whole file is there and its content has been checked. Raises DownloadEnded, Interrupted."""
        while self.checked_as is None:
            self._look()
            self._pause()

    def _pause(self) -> None:
        if self.checked_as is None:
            self._check_cancelled()
            time.sleep(LOOK_SECONDS)

    def _look(self) -> None:
        """Read what the journal has got. Raises DownloadEnded where it was removed before the file was checked."""
        with self._lock:
            is_removed = os.fstat(self._journal_number).st_nlink == 0  # before its last line is read
            while found := os.pread(self._journal_number, READ_BYTES, self._position):
                self._position += len(found)
                *lines, self._rest = (self._rest + found).split(b"\n")
                for line in lines:
                    self._take(line)
            if is_removed and self.checked_as is None:
                raise DownloadEnded(f"{self.name}: its download ended while the file was read")

    def _take(self, line: bytes) -> None:
        if not self._block_bytes:
            self._begin(line)
        elif line == CHECKED:
            state = os.fstat(self._file_number)
            self.checked_as = state.st_size, state.st_mtime_ns
        elif line.isdigit() and int(line) < len(self._done):
            self._done[int(line)] = 1

    def _begin(self, line: bytes) -> None:
        try:
            header = json.loads(line)
            size_bytes, block_bytes = int(header["size_bytes"]), int(header["block_bytes"])
        except (ValueError, KeyError, TypeError) as error:
            raise DownloadEnded(f"{self.name}: its download has no usable journal") from error
        self._block_bytes = max(1, block_bytes)
        self._done = bytearray(-(-size_bytes // self._block_bytes))
