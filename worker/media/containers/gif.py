"""Blocks of a GIF file. Format: GIF89a specification, sections 15 to 27."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, Final

HEADER_BYTES: Final = 13
EXTENSION, IMAGE, TRAILER = b"!", b",", b";"
COMMENT, APPLICATION = b"\xfe", b"\xff"  # labels of extensions


class BrokenGif(ValueError):
    """A GIF that ends within a block, or has one of an unknown kind."""


@dataclass(frozen=True, slots=True)
class Block:
    """A block of a GIF that starts at byte `start`.

    `label` is an extension's, else empty. `right` and `bottom` are an image's edges in pixels, else 0. `sub_blocks`
    reads the contents from the file, once, up to the block's end.
    """

    label: bytes
    start: int
    right: int
    bottom: int
    sub_blocks: Iterator[bytes]

    @property
    def is_image(self) -> bool:
        """True for an image, False for an extension."""
        return not self.label


def read_screen(file: BinaryIO) -> tuple[int, int]:
    """Return width and height in pixels of the logical screen, and go to the first block. Raises BrokenGif."""
    file.seek(0)
    width, height, flags = _read(file, "<6xHHB2x")
    file.seek(_palette_bytes(flags), 1)
    return width, height


def read_blocks(file: BinaryIO) -> Iterator[Block]:
    """Yield each block up to the trailer of a file that is at its first block. Raises BrokenGif where the file ends.

    Sub-blocks that the caller leaves are skipped.
    """
    while (introducer := file.read(1)) != TRAILER:
        start, label, right, bottom = file.tell() - 1, b"", 0, 0
        if introducer == EXTENSION:
            (label,) = _read(file, "<c")
        elif introducer == IMAGE:
            left, top, width, height, flags = _read(file, "<HHHHB")
            right, bottom = left + width, top + height
            file.seek(_palette_bytes(flags) + 1, 1)  # and the LZW minimum code size
        else:
            raise BrokenGif("has an unknown block" if introducer else "ends too early")
        block = Block(label, start, right, bottom, _sub_blocks(file))
        yield block
        for _ in block.sub_blocks:
            pass


def _sub_blocks(file: BinaryIO) -> Iterator[bytes]:
    while size := _read(file, "<B")[0]:
        yield file.read(size)


def _read(file: BinaryIO, layout: str) -> tuple[Any, ...]:
    data = file.read(struct.calcsize(layout))
    if len(data) < struct.calcsize(layout):
        raise BrokenGif("ends too early")
    return struct.unpack(layout, data)


def _palette_bytes(flags: int) -> int:
    return 3 << (flags & 7) + 1 if flags & 0x80 else 0
