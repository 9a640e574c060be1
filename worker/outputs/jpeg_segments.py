"""Metadata of a JPEG: Exif, XMP, IPTC and comments removed, Exif added, the image data unchanged.

Format: ITU-T T.81, annex B. Segments required for decoding are kept: JFIF, Adobe's colour transform, the colour
profile.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

SOI, SOS, APP0, APP1, APP2, APP14, COM = 0xD8, 0xDA, 0xE0, 0xE1, 0xE2, 0xEE, 0xFE
APP_SEGMENTS = range(0xE0, 0xF0)
MAX_SEGMENT_BYTES = 65_533


class BrokenJpeg(ValueError):
    """A file that is not a JPEG, or that ends before its image data."""


def has_metadata(path: Path) -> bool:
    """Return True if the file contains anything that `rewrite_jpeg` would drop."""
    with path.open("rb") as file:
        return any(_is_metadata(marker, content) for marker, content in _segments(file))


def exif_in(path: Path) -> bytes:
    """Return the Exif block (`Exif\\0\\0` and TIFF), empty if there is none."""
    with path.open("rb") as file:
        blocks = (content for marker, content in _segments(file) if marker == APP1 and content.startswith(b"Exif\0\0"))
        return next(blocks, b"")


def rewrite_jpeg(source: Path, target: Path, *, drops: bool, exif: bytes) -> None:
    """Copy a file without its metadata (if `drops`) and with `exif` (`Exif\\0\\0` and TIFF) unless that is empty.

    Raises BrokenJpeg, ValueError for an Exif that is too long for a segment.
    """
    if len(exif) > MAX_SEGMENT_BYTES:
        raise ValueError(f"a JPEG holds {MAX_SEGMENT_BYTES} bytes of metadata, these are {len(exif)}")
    with source.open("rb") as file, target.open("wb") as out:
        out.write(bytes((0xFF, SOI)))
        is_due = bool(exif)
        for marker, content in _segments(file):
            if is_due and marker != APP0:  # JFIF requires APP0 to be first
                out.write(_segment(APP1, exif))
                is_due = False
            if not (drops and _is_metadata(marker, content)):
                out.write(_segment(marker, content))
        shutil.copyfileobj(file, out)  # the rest of the picture


def _segments(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yield marker and content of each segment through the first SOS, after which the file is then positioned."""
    if file.read(2) != bytes((0xFF, SOI)):
        raise BrokenJpeg("is not a JPEG file")
    marker = 0
    while marker != SOS:
        lead = file.read(2)
        while lead[:1] == b"\xff" and lead[1:] == b"\xff":  # fill bytes
            lead = b"\xff" + file.read(1)
        size = file.read(2)
        if len(lead) < 2 or lead[0] != 0xFF or len(size) < 2:
            raise BrokenJpeg("ends before its picture")
        marker, length = lead[1], int.from_bytes(size, "big") - 2
        content = file.read(max(length, 0))
        if length < 0 or len(content) < length:
            raise BrokenJpeg("ends before its picture")
        yield marker, content


def _segment(marker: int, content: bytes) -> bytes:
    return bytes((0xFF, marker)) + (len(content) + 2).to_bytes(2, "big") + content


def _is_metadata(marker: int, content: bytes) -> bool:
    if marker == APP2:
        return not content.startswith(b"ICC_PROFILE\0")
    return marker == COM or (marker in APP_SEGMENTS and marker not in (APP0, APP14))
