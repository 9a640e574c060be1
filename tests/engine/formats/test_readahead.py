"""Cold parts of a file are brought into the page cache ahead of their reader, and only those."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from darkroom.engine.formats.readahead import PIECE_BYTES, reading_ahead

MIB = 1 << 20


class Disk:
    """`os.preadv` that knows what was read, and whose page cache is as cold or warm as the test says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, is_cold: bool) -> None:
        self.is_cold = is_cold
        self.read: list[tuple[int, int]] = []
        self.threads: set[int] = set()
        self._read: Callable[[int, Sequence[bytearray], int], int] = os.preadv
        monkeypatch.setattr(os, "preadv", self.preadv)

    def preadv(self, number: int, buffers: Sequence[bytearray], position: int, flags: int = 0) -> int:
        if flags and self.is_cold:
            raise BlockingIOError
        num_bytes = self._read(number, buffers, position)
        if not flags:
            self.read.append((position, position + num_bytes))
            self.threads.add(threading.get_ident())
        return num_bytes


@pytest.fixture
def file_number(tmp_path: Path) -> int:
    path = tmp_path / "file"
    path.write_bytes(bytes(40 * MIB))
    return os.open(path, os.O_RDONLY)


def test_what_is_cold_is_read_once_by_several_threads_before_its_turn(
    file_number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch, is_cold=True)
    with reading_ahead(file_number, [(20 * MIB, 40 * MIB), (0, 10 * MIB), (10 * MIB, 12 * MIB)]) as ahead:
        ahead.wait_for(1)
        assert max(end for start, end in disk.read if start < PIECE_BYTES) >= PIECE_BYTES
        ahead.wait_for(40 * MIB)
        assert sum(end - start for start, end in disk.read) == 32 * MIB
        assert not any(12 * MIB <= start < 20 * MIB for start, _ in disk.read)
    assert threading.get_ident() not in disk.threads


def test_what_the_page_cache_holds_is_not_read_again(file_number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(monkeypatch, is_cold=False)
    with reading_ahead(file_number, [(0, 40 * MIB)]) as ahead:
        ahead.wait_for(40 * MIB)
    assert disk.read == []


def test_who_leaves_early_waits_for_no_piece_that_was_not_begun(
    file_number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch, is_cold=True)
    begun = threading.Event()
    read = disk._read

    def slow(number: int, buffers: Sequence[bytearray], position: int) -> int:
        begun.wait(60)
        return read(number, buffers, position)

    disk._read = slow
    with reading_ahead(file_number, [(0, 40 * MIB)]):
        begun.set()
    assert sum(end - start for start, end in disk.read) <= 40 * MIB


def test_a_file_that_has_become_shorter_does_not_keep_its_reader(
    file_number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Disk(monkeypatch, is_cold=True)
    os.truncate(tmp_path / "file", 9 * MIB)
    with reading_ahead(file_number, [(0, 40 * MIB)]) as ahead:
        ahead.wait_for(40 * MIB)
