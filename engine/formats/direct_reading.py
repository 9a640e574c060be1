"""Reading of tensors past the page cache (O_DIRECT), for weights that are copied once and not read from the file again.

A cold file is read so with less processor time, and nothing leaves the page cache for it. Readers fill page-aligned
buffers ahead of whoever takes the tensors; a buffer is used again once its tensors have been taken. Tensors that are in
the page cache are read from there, and so is everything where the file system has no direct reading.
"""

from __future__ import annotations

import mmap
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import torch

from darkroom.engine.formats.readahead import NUM_READERS, PIECE_BYTES, WORTHWHILE_BYTES, is_cached

ALIGNMENT_BYTES = 4096
RUN_BYTES = 16 << 20  # of tensors read together; a larger tensor is a run of its own
RUNS_AHEAD = 3


@dataclass(frozen=True, slots=True)
class Wanted:
    """A tensor's place in the file."""

    key: str
    start: int
    num_bytes: int


@dataclass(slots=True)
class _Run:
    """Tensors behind each other. `start` is aligned; `memory` is there while they are read and taken."""

    items: list[Wanted]
    start: int
    end: int
    memory: mmap.mmap | None = None
    reading: list[Future[None]] = field(default_factory=list)


def direct_descriptor(file_number: int) -> int | None:
    """Open an open file once more for direct reading; None where that is not possible. The caller closes it."""
    try:
        return os.open(f"/proc/self/fd/{file_number}", os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
    except (OSError, AttributeError):
        return None


def read_directly(file_number: int, wanted: Sequence[Wanted]) -> Iterator[tuple[str, torch.Tensor | None]]:
    """Yield (key, bytes [num_bytes] of it) in the order of `wanted`, which is the file's.

    The bytes hold until the next one is taken. They are None for tensors that are better read through the page cache.
    """
    direct = direct_descriptor(file_number) if sum(item.num_bytes for item in wanted) >= WORTHWHILE_BYTES else None
    if direct is None:
        yield from ((item.key, None) for item in wanted)
        return
    readers = ThreadPoolExecutor(NUM_READERS, thread_name_prefix="direct-reader")
    try:
        yield from _Reading(readers, direct, lambda start, end: is_cached(file_number, start, end)).read(wanted)
    finally:
        readers.shutdown(cancel_futures=True)
        os.close(direct)


class _Reading:
    """One pass over a file."""

    def __init__(self, readers: ThreadPoolExecutor, direct: int, is_in_cache: Callable[[int, int], bool]) -> None:
        self._readers = readers
        self._direct = direct
        self._is_in_cache = is_in_cache
        self._free: list[mmap.mmap] = []

    def read(self, wanted: Sequence[Wanted]) -> Iterator[tuple[str, torch.Tensor | None]]:
        ahead: deque[_Run] = deque()
        for run in _runs(wanted):
            self._begin(run)
            ahead.append(run)
            if len(ahead) > RUNS_AHEAD:
                yield from self._take(ahead.popleft())
        while ahead:
            yield from self._take(ahead.popleft())

    def _begin(self, run: _Run) -> None:
        if self._is_in_cache(run.start, run.end):
            return
        num_bytes = run.end - run.start
        run.memory = self._memory(num_bytes)
        run.reading = [
            self._readers.submit(self._fill, run.memory, run.start, offset, min(PIECE_BYTES, num_bytes - offset))
            for offset in range(0, num_bytes, PIECE_BYTES)
        ]

    def _memory(self, num_bytes: int) -> mmap.mmap:
        found = next((memory for memory in self._free if len(memory) >= num_bytes), None)
        if found is None:
            return mmap.mmap(-1, num_bytes)
        self._free.remove(found)
        return found

    def _fill(self, memory: mmap.mmap, start: int, offset: int, num_bytes: int) -> None:
        """Read a piece. Raises OSError."""
        view = memoryview(memory)[offset : offset + num_bytes]
        position = start + offset
        while view:
            num_read = os.preadv(self._direct, [view], position)
            view, position = view[num_read:], position + num_read
            if num_read % ALIGNMENT_BYTES or not num_read:  # the end of the file
                return

    def _take(self, run: _Run) -> Iterator[tuple[str, torch.Tensor | None]]:
        memory = run.memory
        try:
            for reading in run.reading:
                reading.result()
        except OSError:  # a file system that has the flag and refuses to read so
            memory = None
        for item in run.items:
            if memory is None or not item.num_bytes:
                yield item.key, None
            else:
                offset = item.start - run.start
                yield item.key, torch.frombuffer(memory, dtype=torch.uint8, count=item.num_bytes, offset=offset)
        if memory is not None:
            self._free.append(memory)


def _runs(wanted: Sequence[Wanted]) -> Iterator[_Run]:
    """Yield the tensors in runs of a buffer's size, from and to aligned places."""
    run: _Run | None = None
    for item in wanted:
        start = item.start // ALIGNMENT_BYTES * ALIGNMENT_BYTES
        end = -(-(item.start + item.num_bytes) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        if run is not None and run.start <= start <= run.end + PIECE_BYTES and end - run.start <= RUN_BYTES:
            run.items.append(item)
            run.end = max(run.end, end)
            continue
        if run is not None:
            yield run
        run = _Run([item], start, end)
    if run is not None:
        yield run
