"""Readahead of a file by several threads, which bring what is not in the page cache yet.

One thread that touches a mapped file page by page waits for each of them. A disk has a higher throughput with several
requests at once, and a network disk far more. Data that is in the page cache already is not read again.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

NUM_READERS = 4
PIECE_BYTES = 8 << 20
PROBE_BYTES = 1 << 20  # the page cache is asked for one byte in so many
BUFFER_BYTES = 256 << 10  # small enough for a core's own cache
WORTHWHILE_BYTES = 4 << 20


class Readahead:
    """Readahead of pieces of a file, in progress."""

    def __init__(self, pieces: list[tuple[int, Future[None]]]) -> None:
        self._pieces = pieces  # where each begins, and its reading, in the file's order
        self._num_waited_for = 0

    def wait_for(self, end: int) -> None:
        """Wait until everything before the `end`th byte is in the page cache, as far as it was to be read.

        Raises OSError.
        """
        while self._num_waited_for < len(self._pieces):
            start, reading = self._pieces[self._num_waited_for]
            if start >= end:
                return
            reading.result()
            self._num_waited_for += 1


@contextmanager
def reading_ahead(file_number: int, ranges: Iterable[tuple[int, int]]) -> Iterator[Readahead]:
    """Read these ranges (start, end) of an open file ahead, in the file's order, while the context is open."""
    pieces = list(_pieces(ranges))
    if sum(end - start for start, end in pieces) < WORTHWHILE_BYTES:
        yield Readahead([])
        return
    readers = ThreadPoolExecutor(NUM_READERS, thread_name_prefix="readahead")
    try:
        yield Readahead([(start, readers.submit(_bring, file_number, start, end)) for start, end in pieces])
    finally:
        readers.shutdown(cancel_futures=True)


def _pieces(ranges: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield the ranges in order, adjacent ones joined, in pieces of a reader's size."""
    joined: list[list[int]] = []
    for start, end in sorted(ranges):
        if joined and start <= joined[-1][1]:
            joined[-1][1] = max(end, joined[-1][1])
        else:
            joined.append([start, end])
    for start, end in joined:
        for piece_start in range(start, end, PIECE_BYTES):
            yield piece_start, min(piece_start + PIECE_BYTES, end)


def _bring(file_number: int, start: int, end: int) -> None:
    if is_cached(file_number, start, end):
        return
    buffer = bytearray(BUFFER_BYTES)
    position = start
    while position < end:
        num_bytes = os.preadv(file_number, [buffer], position)
        if not num_bytes:
            return  # the file has become shorter; whoever reads it will say so
        position += num_bytes


def is_cached(file_number: int, start: int, end: int) -> bool:
    """Return True if samples of the range can be read without disk access.

    False where the system does not report it.
    """
    probe = bytearray(1)
    try:
        for position in (*range(start, end, PROBE_BYTES), end - 1):
            os.preadv(file_number, [probe], position, os.RWF_NOWAIT)
    except (OSError, AttributeError):
        return False
    return True
