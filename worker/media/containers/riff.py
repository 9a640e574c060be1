"""Chunks of a RIFF file, as WebP is one. Format: RFC 9649, section 2.3."""

from __future__ import annotations

import struct
from collections.abc import Iterator

HEADER_BYTES = 12


class BrokenRiff(ValueError):
    """A file that ends within a chunk."""


def is_webp(data: bytes) -> bool:
    """Return True if `data` starts as a WebP file does."""
    return data[:4] == b"RIFF" and data[8:HEADER_BYTES] == b"WEBP"


def read_chunks(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield kind and content of each chunk. Raises BrokenRiff at a chunk that is cut off, after those before it."""
    position, end = HEADER_BYTES, min(len(data), 8 + int.from_bytes(data[4:8], "little"))
    while position + 8 <= end:
        kind, size_bytes = struct.unpack_from("<4sI", data, position)
        if position + 8 + size_bytes > len(data):
            raise BrokenRiff("ends within a chunk")
        yield kind, data[position + 8 : position + 8 + size_bytes]
        position += 8 + size_bytes + size_bytes % 2
