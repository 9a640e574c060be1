"""Segments of a JPEG file before its image data. Format: ITU-T T.81, annex B."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO, Final

SOI, SOS, EOI, APP0, APP1, APP2, APP14, COM = 0xD8, 0xDA, 0xD9, 0xE0, 0xE1, 0xE2, 0xEE, 0xFE
APP_SEGMENTS: Final = range(0xE0, 0xF0)
EXIF_PREFIX: Final = b"Exif\0\0"  # of an APP1 segment, before a TIFF


class BrokenJpeg(ValueError):
    """A file that is not a JPEG, or that ends before its image data."""


def read_segments(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yield marker and content of each segment through the first SOS, after which the file is then positioned.

    Raises BrokenJpeg at the segment where the file ends, after those before it.
    """
    file.seek(0)
    if file.read(2) != bytes((0xFF, SOI)):
        raise BrokenJpeg("is not a JPEG file")
    marker = 0
    while marker != SOS:
        lead = file.read(2)
        while lead == b"\xff\xff":  # fill bytes
            lead = b"\xff" + file.read(1)
        size = file.read(2)
        if len(lead) < 2 or lead[0] != 0xFF or len(size) < 2:
            raise BrokenJpeg("ends before its image data")
        marker, length = lead[1], int.from_bytes(size, "big") - 2
        content = file.read(max(length, 0))
        if length < 0 or len(content) < length:
            raise BrokenJpeg("ends before its image data")
        yield marker, content
