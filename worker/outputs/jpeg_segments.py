"""Metadata of a JPEG: Exif, XMP, IPTC and comments removed, Exif added, the image data unchanged.

Format: ITU-T T.81, annex B. Segments required for decoding are kept: JFIF, Adobe's colour transform, the colour
profile.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from darkroom.worker.media.containers.jpeg import (
    APP0,
    APP1,
    APP2,
    APP14,
    APP_SEGMENTS,
    COM,
    EXIF_PREFIX,
    SOI,
    read_segments,
)

MAX_SEGMENT_BYTES = 65_533


def has_metadata(path: Path) -> bool:
    """Return True if the file contains anything that `rewrite_jpeg` would drop."""
    with path.open("rb") as file:
        return any(_is_metadata(marker, content) for marker, content in read_segments(file))


def exif_in(path: Path) -> bytes:
    """Return the Exif block (`Exif\\0\\0` and TIFF), empty if there is none."""
    with path.open("rb") as file:
        blocks = (
            content for marker, content in read_segments(file) if marker == APP1 and content.startswith(EXIF_PREFIX)
        )
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
        for marker, content in read_segments(file):
            if is_due and marker != APP0:  # JFIF requires APP0 to be first
                out.write(_segment(APP1, exif))
                is_due = False
            if not (drops and _is_metadata(marker, content)):
                out.write(_segment(marker, content))
        shutil.copyfileobj(file, out)  # the rest of the image


def _segment(marker: int, content: bytes) -> bytes:
    return bytes((0xFF, marker)) + (len(content) + 2).to_bytes(2, "big") + content


def _is_metadata(marker: int, content: bytes) -> bool:
    if marker == APP2:
        return not content.startswith(b"ICC_PROFILE\0")
    return marker == COM or (marker in APP_SEGMENTS and marker not in (APP0, APP14))
