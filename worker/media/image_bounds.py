"""Limits on the frames and pixels of an image, read from its structure before it is decoded.

The memory of an image depends on frames x pixels, not on its bytes: 535 KB of GIF can be 600 frames of 512x512. Each
frame counts as at least MIN_FRAME_PX, since readers allocate a mask of that size for it. Other costs in time or memory
are limited too: a JPEG's scans, a GIF's blocks, a PNG's compressed profiles, and the numbers in TIFF tags and Exif.

Formats: GIF89a; TIFF 6.0 and BigTIFF; ITU-T T.81; PNG specification, third edition.
"""

from __future__ import annotations

import mmap
import re
import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from darkroom.worker.media.containers.gif import BrokenGif, read_blocks, read_screen
from darkroom.worker.media.containers.png import BrokenPng, read_chunks

if TYPE_CHECKING:
    from PIL import Image

MAX_INPUT_PIXELS = 1 << 27  # frames x pixels; the default of INPUT_MAX_PIXELS
MAX_FRAMES = 10_000
MIN_FRAME_PX = 64 * 64
MAX_JPEG_SCANS = 200  # each covers the whole image
MAX_GIF_BLOCKS = 2_000_000  # of up to 255 bytes
MAX_TAG_NUMBERS = 1 << 20  # each becomes an object
MAX_EXIF_BYTES = 16 << 20
MAX_PROFILE_CHUNKS = 1
MAX_PACKED_TEXTS = 64  # each may take Pillow a MiB to unpack, which it then leaves out
MAX_PNG_CHUNKS = 200_000

_SOS = b"\xff\xda"
_MARKER = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")
_NUMBER_TYPES = frozenset({3, 4, 5, 6, 8, 9, 10, 11, 12, 13, 16, 17, 18})
_TIFF_SIZES = {3: "H", 4: "L", 16: "Q"}
_WIDTH_TAG, _HEIGHT_TAG = 256, 257


class OutOfBounds(ValueError):
    """An image that exceeds a limit; the message names the quantity and its maximum."""


@dataclass(slots=True)
class Extent:
    """The frames and pixels counted so far, with their limit."""

    max_pixels: int
    num_frames: int = 0
    num_pixels: int = 0

    def add(self, width: int, height: int, num_frames: int = 1) -> None:
        """Count frames of one size. Raises OutOfBounds."""
        self.num_frames += num_frames
        self.num_pixels += num_frames * max(width * height, MIN_FRAME_PX)
        if self.num_frames > MAX_FRAMES:
            raise OutOfBounds(f"has at least {self.num_frames} frames; expected at most {MAX_FRAMES}")
        if self.num_pixels > self.max_pixels:
            raise OutOfBounds(
                f"has at least {self.num_pixels} pixels in {self.num_frames} frames of up to {width}x{height} px; "
                f"expected at most {self.max_pixels} (INPUT_MAX_PIXELS)"
            )


def check_structure(path: Path, extension: str, max_pixels: int) -> None:
    """Check the structure of a file before a library opens it, for formats with consecutive frames. Raises OutOfBounds.

    A malformed file passes; the error is reported by the library that opens it.
    """
    with path.open("rb") as file:
        match extension:
            case "gif":
                _check_gif(file, Extent(max_pixels))
            case "tiff":
                _check_tiff(file, Extent(max_pixels))
            case "jpg":
                _check_jpeg(file)
            case "png":
                _check_png(file)


def check_opened(image: Image.Image, max_pixels: int) -> None:
    """Check an open image before it is decoded. Raises OutOfBounds.

    GIF and TIFF are counted by `check_structure` only, since Pillow has to read the whole file to count frames.
    """
    num_frames = 1 if image.format in ("GIF", "TIFF", "MPO") else getattr(image, "n_frames", 1)
    Extent(max_pixels).add(image.width, image.height, num_frames)
    exif = image.info.get("exif", b"")
    if len(exif) > MAX_EXIF_BYTES:
        raise OutOfBounds(f"has {len(exif)} bytes of Exif; expected at most {MAX_EXIF_BYTES}")


def _check_gif(file: BinaryIO, extent: Extent) -> None:
    num_sub_blocks = 0
    with suppress(BrokenGif):
        width, height = read_screen(file)
        for block in read_blocks(file):
            if block.is_image:
                width, height = max(width, block.right), max(height, block.bottom)
                extent.add(width, height)
            for _ in block.sub_blocks:
                num_sub_blocks += 1
                if num_sub_blocks > MAX_GIF_BLOCKS:
                    raise OutOfBounds(f"has more than {MAX_GIF_BLOCKS} blocks; expected at most {MAX_GIF_BLOCKS}")


def _check_tiff(file: BinaryIO, extent: Extent) -> None:
    order = "<" if file.read(2) == b"II" else ">"
    is_big = file.read(2) in (b"+\0", b"\0+")
    file.seek(8 if is_big else 4)
    for width, height in _tiff_pages(file, order, is_big):
        extent.add(width, height)


def _tiff_pages(file: BinaryIO, order: str, is_big: bool) -> Iterator[tuple[int, int]]:
    """Yield the size of each page up to the end of the file. Raises OutOfBounds for a tag of too many numbers."""
    place, count, entry = ("Q", "Q", "HHQ8s") if is_big else ("L", "H", "HHL4s")
    seen: set[int] = set()
    while True:
        offset = _read(file, order + place)
        if not offset or offset[0] in seen or not offset[0]:
            return
        seen.add(offset[0])
        file.seek(offset[0])
        num_entries = _read(file, order + count)
        if not num_entries:
            return
        sides = {_WIDTH_TAG: 0, _HEIGHT_TAG: 0}
        for _ in range(num_entries[0]):
            found = _read(file, order + entry)
            if not found:
                return
            tag, kind, num_values, value = found
            if kind in _NUMBER_TYPES and num_values > MAX_TAG_NUMBERS:
                raise OutOfBounds(f"has {num_values} numbers in its tag {tag}; expected at most {MAX_TAG_NUMBERS}")
            if tag in sides and kind in _TIFF_SIZES and num_values == 1:
                (sides[tag],) = struct.unpack_from(order + _TIFF_SIZES[kind], value)
        yield sides[_WIDTH_TAG], sides[_HEIGHT_TAG]


def _read(file: BinaryIO, layout: str) -> tuple[Any, ...] | None:
    """Read packed values; None if the file ends before them."""
    size = struct.calcsize(layout)
    data = file.read(size)
    return struct.unpack(layout, data) if len(data) == size else None


def _check_jpeg(file: BinaryIO) -> None:
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if sum(1 for _ in zip(range(MAX_JPEG_SCANS + 1), re.finditer(_SOS, data), strict=False)) <= MAX_JPEG_SCANS:
            return  # includes byte sequences that only resemble a scan
        if _num_scans(data) > MAX_JPEG_SCANS:
            raise OutOfBounds(f"has more than {MAX_JPEG_SCANS} scans; expected at most {MAX_JPEG_SCANS}")


def _num_scans(data: mmap.mmap) -> int:
    """Count the scans, stopping at one more than the limit."""
    place, num_scans = 2, 0
    while num_scans <= MAX_JPEG_SCANS and (found := _MARKER.search(data, place)):
        if found[0] == b"\xff\xd9":
            break
        num_scans += found[0] == _SOS
        place = found.end() + int.from_bytes(data[found.end() : found.end() + 2], "big")
    return num_scans


def _check_png(file: BinaryIO) -> None:
    num_profiles = num_texts = 0
    with suppress(BrokenPng):
        for num_chunks, (kind, _size_bytes) in enumerate(read_chunks(file)):
            num_profiles += kind == b"iCCP"
            num_texts += kind in (b"zTXt", b"iTXt")
            if num_profiles > MAX_PROFILE_CHUNKS:
                raise OutOfBounds("has several colour profiles; expected at most one")
            if num_texts > MAX_PACKED_TEXTS:
                raise OutOfBounds(f"has {num_texts} compressed texts or more; expected at most {MAX_PACKED_TEXTS}")
            if num_chunks > MAX_PNG_CHUNKS:
                raise OutOfBounds(f"has more than {MAX_PNG_CHUNKS} chunks; expected at most {MAX_PNG_CHUNKS}")
