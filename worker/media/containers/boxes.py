"""Boxes of the ISO base media file format (MP4, MOV, M4A). Format: ISO/IEC 14496-12, section 4.2."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO


class BrokenBoxes(ValueError):
    """A box that is larger than the one that it lies in."""


@dataclass(frozen=True, slots=True)
class Box:
    """A box from byte `start` to `end`, whose content begins at `content`."""

    kind: bytes
    start: int
    content: int
    end: int


def read_boxes(file: BinaryIO, start: int, end: int) -> Iterator[Box]:
    """Yield each box between two positions. Raises BrokenBoxes, after the boxes before the broken one.

    The caller may move the file in between.
    """
    while start + 8 <= end:
        file.seek(start)
        size_bytes, kind = struct.unpack(">I4s", file.read(8))
        head_bytes = 8
        if size_bytes == 1:
            (size_bytes,), head_bytes = struct.unpack(">Q", file.read(8)), 16
        size_bytes = size_bytes or end - start  # 0: to the end
        if size_bytes < head_bytes or start + size_bytes > end:
            raise BrokenBoxes("has a box larger than itself")
        yield Box(kind, start, start + head_bytes, start + size_bytes)
        start += size_bytes
