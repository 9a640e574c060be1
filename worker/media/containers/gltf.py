"""The description in a binary glTF file. Format: glTF 2.0, section 4.4."""

from __future__ import annotations

import struct
from typing import BinaryIO, Final

CONTENT_START: Final = 20  # behind the file's header and the head of the first chunk
JSON_CHUNK: Final = b"JSON"


class BrokenGltf(ValueError):
    """A file whose first chunk is not JSON, or is too long."""


def read_description(file: BinaryIO, max_bytes: int) -> bytes:
    """Return the JSON text of the first chunk, which is padded with spaces. Raises BrokenGltf."""
    file.seek(12)
    head = file.read(8)
    if len(head) < 8:
        raise BrokenGltf("ends too early")
    size_bytes, kind = struct.unpack("<I4s", head)
    if kind != JSON_CHUNK or size_bytes > max_bytes:
        raise BrokenGltf(f"has a first chunk of {size_bytes} bytes; expected JSON of at most {max_bytes}")
    return file.read(size_bytes)
