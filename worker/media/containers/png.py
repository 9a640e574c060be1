"""Chunks of a PNG file. Format: PNG specification, third edition, section 5."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import BinaryIO, Final

SIGNATURE: Final = b"\x89PNG\r\n\x1a\n"
TEXT_CHUNKS: Final = frozenset({b"tEXt", b"zTXt", b"iTXt"})
CHECKSUM_BYTES: Final = 4


class BrokenPng(ValueError):
    """A file that is not a PNG, or that ends within a chunk."""


def read_chunks(file: BinaryIO) -> Iterator[tuple[bytes, int]]:
    """Yield type and size in bytes of each chunk through IEND, with the file positioned at the chunk's content.

    The caller may read from the file in between; the iterator seeks to the next chunk itself. Raises BrokenPng at the
    chunk where the file ends, after those before it.
    """
    file.seek(0)
    if file.read(len(SIGNATURE)) != SIGNATURE:
        raise BrokenPng("is not a PNG file")
    kind = b""
    while kind != b"IEND":
        head = file.read(8)
        if len(head) < 8:
            raise BrokenPng("ends within a chunk")
        size_bytes, kind = struct.unpack(">I4s", head)
        start = file.tell()
        yield kind, size_bytes
        file.seek(start + size_bytes + CHECKSUM_BYTES)
