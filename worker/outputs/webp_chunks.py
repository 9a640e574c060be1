"""Metadata of a WebP file: Exif and XMP removed, Exif added, the image data unchanged.

Format: RFC 9649, section 2.7: a RIFF file. Exif and XMP follow the image data and are announced by flags in VP8X.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

from darkroom.worker.media.containers.riff import BrokenRiff, is_webp, read_chunks

XMP_FLAG, EXIF_FLAG, ALPHA_FLAG = 0x04, 0x08, 0x10


def has_metadata(path: Path) -> bool:
    return any(kind in (b"EXIF", b"XMP ") for kind, _ in _chunks(path))


def exif_in(path: Path) -> bytes:
    """Return the Exif block (TIFF, in some files after `Exif\\0\\0`), empty if there is none."""
    return next((content for kind, content in _chunks(path) if kind == b"EXIF"), b"")


def rewrite_webp(source: Path, target: Path, *, drops: bool, exif: bytes) -> None:
    """Copy a file without its metadata (if `drops`) and with `exif` (TIFF) unless that is empty. Raises BrokenRiff."""
    kept = [
        (kind, content)
        for kind, content in _chunks(source)
        if not (kind in (b"EXIF", b"XMP ") and drops) and not (kind == b"EXIF" and exif)
    ]
    if exif:
        if kept and kept[0][0] != b"VP8X":
            kept.insert(0, (b"VP8X", _extended_header(*kept[0])))
        kept.append((b"EXIF", exif))
    kinds = {kind for kind, _ in kept}
    body = b"".join(_chunk(kind, _flagged(content, kinds) if kind == b"VP8X" else content) for kind, content in kept)
    target.write_bytes(b"RIFF" + struct.pack("<I", len(body) + 4) + b"WEBP" + body)


def _chunks(path: Path) -> Iterator[tuple[bytes, bytes]]:
    data = path.read_bytes()
    if not is_webp(data):
        raise BrokenRiff("is not a WebP file")
    return read_chunks(data)


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack("<4sI", kind, len(content)) + content + b"\0" * (len(content) % 2)


def _extended_header(kind: bytes, image: bytes) -> bytes:
    """Return a VP8X header from the start of the image data of a file without one (RFC 9649 3.4, RFC 6386 9.1)."""
    if kind == b"VP8L" and len(image) >= 5:
        bits = int.from_bytes(image[1:5], "little")
        width, height, has_alpha = (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1, bits >> 28 & 1
    elif kind == b"VP8 " and len(image) >= 10:
        width, height = (value & 0x3FFF for value in struct.unpack_from("<HH", image, 6))
        has_alpha = 0
    else:
        raise BrokenRiff("has no image")
    sides = (max(width, 1) - 1).to_bytes(3, "little") + (max(height, 1) - 1).to_bytes(3, "little")
    return bytes((ALPHA_FLAG if has_alpha else 0, 0, 0, 0)) + sides


def _flagged(header: bytes, kinds: set[bytes]) -> bytes:
    if not header:
        raise BrokenRiff("ends within a chunk")
    flags = header[0] & ~(EXIF_FLAG | XMP_FLAG)
    flags |= (EXIF_FLAG if b"EXIF" in kinds else 0) | (XMP_FLAG if b"XMP " in kinds else 0)
    return bytes((flags,)) + header[1:]
