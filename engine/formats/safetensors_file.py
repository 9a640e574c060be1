"""Reader and writer of `.safetensors`: a header of names, types and offsets, then the tensors, mapped into memory.

The format is public (github.com/huggingface/safetensors). It is implemented here because every malformed file has to
raise a `BadModelFile` that describes the fault.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import platform
import weakref
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from engine.errors import BadModelFile
from engine.formats.readahead import Readahead, reading_ahead
from engine.formats.safetensors_header import LENGTH_BYTES, SafetensorsHeader, read_header

EXPECTED = "a complete .safetensors file"
MADV_POPULATE_READ = 22  # Linux; the standard library has no name for it
MAP_NORESERVE = 0x4000  # likewise
POPULATE_FROM_BYTES = 1 << 17
MAX_SHOWN_LENGTH = 200

TYPES: Mapping[str, torch.dtype] = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TensorPlace:
    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int  # bytes from the start of the file
    num_bytes: int


class SafetensorsFile:
    """An open file. Tensors are views of `mapping`, which lives as long as they do; writing to one copies its pages.

    Raises `BadModelFile` when the file is not whole and well-formed.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("rb") as file:
            self._opened_as = _size_and_time(file.fileno())
            size, _ = self._opened_as
            start = read_header(file)
            if len(start.prefix) < LENGTH_BYTES:
                raise BadModelFile(path.name, f"a file of {size} bytes", EXPECTED)
            content = _content(start.prefix)
            if content is not None or start.raw is None:
                raise BadModelFile(path.name, content or f"a file that starts with {start.prefix!r}", EXPECTED)
            if len(start.raw) < start.num_bytes:
                raise BadModelFile(path.name, f"a file cut off within its header, at {size} bytes", EXPECTED)
            header = _parse_header(path.name, start)
            self.mapping = _mapped(path.name, file.fileno())
            self._file_number = os.dup(file.fileno())  # the mapping's own file, whatever the path names later
        weakref.finalize(self, os.close, self._file_number)
        self._opened_by: SafetensorsFile | None = None
        self.metadata: dict[str, str] = header.pop("__metadata__", None) or {}
        self.tensors = {
            name: _place(path.name, name, entry, start.num_bytes + LENGTH_BYTES) for name, entry in header.items()
        }
        end = max((place.start + place.num_bytes for place in self.tensors.values()), default=0)
        if end > size:
            places = self.tensors.items()
            _, first = min((place.start, name) for name, place in places if place.start + place.num_bytes > size)
            found = f"a file cut off at {size:,} of {end:,} bytes, {first!r} is the first tensor that is not whole"
            raise BadModelFile(path.name, found, EXPECTED)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: place.shape for name, place in self.tensors.items()}

    def with_tensors(self, more: Mapping[str, TensorPlace]) -> SafetensorsFile:
        """Return the same open file with further names for stretches of it."""
        other = copy(self)
        other.tensors = {**self.tensors, **more}
        other._opened_by = self  # which closes it
        return other

    def check(self) -> None:
        """Raise `BadModelFile` when the file was written to since it was opened, such as by a new download.

        Touching pages that were cut off ends the process (SIGBUS), and new ones hold other weights. A file that
        replaced this one under its name is no such case: this one remains unchanged.
        """
        size, _ = now = _size_and_time(self._file_number)
        if now != self._opened_as:
            found = f"a file that was changed while it was in use, from {self._opened_as[0]:,} to {size:,} bytes"
            raise BadModelFile(self.path.name, found, "one that stays as it is; the next prompt reads it anew")

    def tensor(self, name: str, *, is_needed_now: bool = True) -> torch.Tensor:
        """Return a view of the mapping; unless it is needed now, its pages are loaded when they are touched."""
        place = self.tensors[name]
        count = place.num_bytes // place.dtype.itemsize
        if count == 0:
            return torch.empty(place.shape, dtype=place.dtype)
        if is_needed_now:
            self.check()
            self._populate(place)
        flat = torch.frombuffer(self.mapping, dtype=torch.uint8, count=place.num_bytes, offset=place.start)
        if place.start % place.dtype.itemsize:
            flat = flat.clone()  # a header of odd length leaves tensors where their type may not lie
        return flat.view(place.dtype).view(place.shape)

    def read_into(self, memory: torch.Tensor, name: str, start: int) -> None:
        """Fill `memory` (RAM, uint8) with the bytes of a tensor from its `start`th on, on any thread.

        Raises `BadModelFile` when the file has become shorter.
        """
        left = memory.numpy().data
        position = self.tensors[name].start + start
        while left:
            num_bytes = os.preadv(self._file_number, [left], position)
            if not num_bytes:
                raise BadModelFile(self.path.name, f"a file that was cut off at {position:,} bytes", EXPECTED)
            left, position = left[num_bytes:], position + num_bytes

    def reading_ahead(self, names: Iterable[str]) -> AbstractContextManager[Readahead]:
        """Read these tensors into the page cache by several readers, in the file's order, while the context is open."""
        places = (self.tensors[name] for name in names)
        return reading_ahead(self._file_number, ((place.start, place.start + place.num_bytes) for place in places))

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


def write_safetensors(
    path: Path, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str] | None = None
) -> None:
    """Write CPU tensors. The file appears under its name only when it is whole."""
    names = {dtype: name for name, dtype in TYPES.items()}
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    position = 0
    for name, tensor in tensors.items():
        offsets = [position, position + tensor.nbytes]
        header[name] = {"dtype": names[tensor.dtype], "shape": list(tensor.shape), "data_offsets": offsets}
        position += tensor.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(path.name + ".part")
    with unfinished.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors.values():
            if tensor.numel():
                file.write(tensor.contiguous().view(-1).view(torch.uint8).numpy().data)
    unfinished.replace(path)


def _size_and_time(file_number: int) -> tuple[int, int]:
    """Return the size and modification time, which change when a file is written to."""
    found = os.fstat(file_number)
    return found.st_size, found.st_mtime_ns


def _content(first_bytes: bytes) -> str | None:
    """Return the other content type that the first bytes identify, or None."""
    if first_bytes.startswith(b"PK"):
        return "a zip archive (a .ckpt or .pt file by another name?)"
    if first_bytes.startswith(b"version "):
        return "a Git LFS pointer instead of the file it points to"
    if first_bytes.lstrip().startswith((b"<!", b"<h", b"{")):
        return "a web page or JSON text (a failed download?)"
    return None


def _mapped(file_name: str, file_number: int) -> mmap.mmap:
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
        raise BadModelFile(file_name, found, EXPECTED) from error


def _parse_header(file_name: str, header: SafetensorsHeader) -> dict[str, Any]:
    try:
        return header.parsed()
    except (ValueError, RecursionError) as error:
        raise BadModelFile(file_name, f"a header that is not JSON ({error})", EXPECTED) from None


def _place(file_name: str, name: str, entry: Any, data_start: int) -> TensorPlace:
    try:
        dtype, shape = TYPES[entry["dtype"]], tuple(int(size) for size in entry["shape"])
        start, end = (int(offset) for offset in entry["data_offsets"])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        found = f"a malformed entry for tensor {name[:MAX_SHOWN_LENGTH]!r}: {repr(entry)[:MAX_SHOWN_LENGTH]}"
        raise BadModelFile(file_name, found, EXPECTED) from error
    num_bytes = dtype.itemsize
    for size in shape:
        num_bytes *= size
    if min(shape, default=0) < 0 or start < 0 or end - start != num_bytes:
        found = f"tensor {name!r} of shape {list(shape)} in {end - start} bytes"
        raise BadModelFile(file_name, found, f"{num_bytes} bytes")
    return TensorPlace(dtype, shape, data_start + start, num_bytes)
