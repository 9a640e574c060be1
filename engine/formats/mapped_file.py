"""A file of tensors that is mapped into memory, whatever its format: the places of its tensors, and reading them."""

from __future__ import annotations

import contextlib
import mmap
import os
import platform
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Self

import torch

from darkroom.engine.errors import BadModelFile
from darkroom.engine.formats.arriving_file import ArrivingFile
from darkroom.engine.formats.direct_reading import Wanted, read_directly
from darkroom.engine.formats.readahead import Readahead, reading_ahead

MADV_POPULATE_READ = 22  # Linux; the standard library has no name for it
MAP_NORESERVE = 0x4000  # likewise
POPULATE_FROM_BYTES = 1 << 17


@dataclass(frozen=True, slots=True)
class TensorPlace:
    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int  # bytes from the start of the file
    num_bytes: int


class MappedFile:
    """An open file. Tensors are views of `mapping`, which lives as long as they do; writing to one copies its pages.

    A format's class reads its header, then maps the file, then sets `tensors` and `metadata`. `expected` names the
    format in errors. What `arriving` is given for is read as it is downloaded, and waited for.
    """

    tensors: dict[str, TensorPlace]
    metadata: dict[str, str]

    def __init__(self, path: Path, file: BinaryIO, expected: str, arriving: ArrivingFile | None = None) -> None:
        self.path = path
        self._arriving = arriving
        self._expected = expected
        self._opened_as = _size_and_time(file.fileno())
        self.mapping = _mapped(path.name, file.fileno(), expected)
        self._file_number = os.dup(file.fileno())  # the mapping's own file, whatever the path names later
        weakref.finalize(self, os.close, self._file_number)
        self._opened_by: MappedFile | None = None

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: place.shape for name, place in self.tensors.items()}

    def with_tensors(self, more: Mapping[str, TensorPlace]) -> Self:
        """Return the same open file with further names for stretches of it."""
        other = copy(self)
        other.tensors = {**self.tensors, **more}
        other._opened_by = self  # which closes it
        return other

    def renamed(self, names: Mapping[str, str]) -> Self:
        """Return the same open file with other names for its tensors: `names` maps those of the file to the new ones.

        Tensors that it does not name are left out.
        """
        other = copy(self)
        other.tensors = {names[name]: place for name, place in self.tensors.items() if name in names}
        other._opened_by = self
        return other

    def check(self) -> None:
        """Raise `BadModelFile` when the file was written to since it was opened, such as by a new download.

        Touching pages that were cut off ends the process (SIGBUS), and new ones hold other weights. A file that
        replaced this one under its name is no such case: this one remains unchanged.
        """
        opened_as = self._opened_as if self._arriving is None else self._arriving.checked_as
        size, _ = now = _size_and_time(self._file_number)
        if opened_as is not None and now != opened_as:
            found = f"a file that was changed while it was in use, from {opened_as[0]:,} to {size:,} bytes"
            raise BadModelFile(self.path.name, found, "one that stays as it is; the next prompt reads it anew")

    @property
    def is_arriving(self) -> bool:
        """True for a file that is being downloaded, until its content has been checked."""
        return self._arriving is not None and self._arriving.checked_as is None

    def settle(self) -> None:
        """Wait until the content of a file that is being downloaded has been checked; any other file has been.

        Raises DownloadEnded, Interrupted.
        """
        if self._arriving is not None:
            self._arriving.wait_until_checked()

    def wait_for(self, start: int, end: int) -> None:
        """Wait until these bytes of a file that is being downloaded are there. Raises DownloadEnded, Interrupted."""
        if self._arriving is not None:
            self._arriving.wait_for(start, end)

    def tensor(self, name: str, *, is_needed_now: bool = True) -> torch.Tensor:
        """Return a view of the mapping; unless it is needed now, its pages are loaded when they are touched."""
        place = self.tensors[name]
        count = place.num_bytes // place.dtype.itemsize
        if count == 0:
            return torch.empty(place.shape, dtype=place.dtype)
        is_aligned = place.start % place.dtype.itemsize == 0
        if is_needed_now or not is_aligned:
            self.wait_for(place.start, place.start + place.num_bytes)
        if is_needed_now:
            self.check()
            self._populate(place)
        flat = torch.frombuffer(self.mapping, dtype=torch.uint8, count=place.num_bytes, offset=place.start)
        if not is_aligned:
            flat = flat.clone()  # a header of odd length leaves tensors where their type may not lie
        return flat.view(place.dtype).view(place.shape)

    def read_into(self, memory: torch.Tensor, name: str, start: int) -> None:
        """Fill `memory` (RAM, uint8) with the bytes of a tensor from its `start`th on, on any thread.

        Raises `BadModelFile` when the file has become shorter.
        """
        left = memory.numpy().data
        position = self.tensors[name].start + start
        self.wait_for(position, position + len(left))
        while left:
            num_bytes = os.preadv(self._file_number, [left], position)
            if not num_bytes:
                raise BadModelFile(self.path.name, f"a file that was cut off at {position:,} bytes", self._expected)
            left, position = left[num_bytes:], position + num_bytes

    def reading_ahead(self, names: Iterable[str]) -> AbstractContextManager[Readahead]:
        """Read these tensors into the page cache by several readers, in the file's order, while the context is open.

        What is being downloaded is there as soon as it has been written.
        """
        if self._arriving is not None:
            return nullcontext(Readahead([]))
        places = (self.tensors[name] for name in names)
        return reading_ahead(self._file_number, ((place.start, place.start + place.num_bytes) for place in places))

    def read_once(self, names: Iterable[tuple[str, str]]) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield (key, tensor) for pairs of a key and a name, in the file's order. A tensor holds until the next one.

        What is not in the page cache is read past it.
        """
        pairs = list(names)
        if self._arriving is not None:
            yield from ((key, self.tensor(name)) for key, name in pairs)
            return
        self.check()
        places = {key: self.tensors[name] for key, name in pairs}
        wanted = [Wanted(key, place.start, place.num_bytes) for key, place in places.items()]
        named = dict(pairs)
        for key, content in read_directly(self._file_number, wanted):
            place = places[key]
            if content is None:
                yield key, self.tensor(named[key])
                continue
            is_aligned = content.data_ptr() % place.dtype.itemsize == 0
            yield key, (content if is_aligned else content.clone()).view(place.dtype).view(place.shape)

    def forget_pages(self) -> None:
        """Unmap the pages read: they stay in the page cache, and no longer count as this process's memory."""
        with contextlib.suppress(OSError, AttributeError):  # a system without it: pages go when memory is short
            self.mapping.madvise(mmap.MADV_DONTNEED)

    def _populate(self, place: TensorPlace) -> None:
        """Map a large tensor's pages in one call instead of one fault each: halves the time of a load."""
        if place.num_bytes < POPULATE_FROM_BYTES:
            return
        start = place.start // mmap.PAGESIZE * mmap.PAGESIZE
        try:
            self.mapping.madvise(MADV_POPULATE_READ, start, place.start + place.num_bytes - start)
        except (OSError, AttributeError):
            return  # a system without it (Linux before 5.14): pages come as they are touched


def _size_and_time(file_number: int) -> tuple[int, int]:
    """Return the size and modification time, which change when a file is written to."""
    found = os.fstat(file_number)
    return found.st_size, found.st_mtime_ns


def _mapped(file_name: str, file_number: int, expected: str) -> mmap.mmap:
    """Map a whole file, copied on write. Raises `BadModelFile` where the system refuses.

    No memory is reserved for copies of its pages: a file may be larger than RAM.
    """
    try:
        if platform.system() == "Linux":
            protection = mmap.PROT_READ | mmap.PROT_WRITE
            return mmap.mmap(file_number, 0, flags=mmap.MAP_PRIVATE | MAP_NORESERVE, prot=protection)
        return mmap.mmap(file_number, 0, access=mmap.ACCESS_COPY)
    except OSError as error:
        found = f"a file that the system does not map into memory ({error.strerror})"
        raise BadModelFile(file_name, found, expected) from error
