"""Each container is read up to where a file is cut, and then named as broken."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Iterator

import pytest

from darkroom.worker.media.containers import boxes, gif, jpeg, png, riff

PNG = png.SIGNATURE + b"".join(
    struct.pack(">I4s", len(content), kind) + content + bytes(4)
    for kind, content in ((b"IHDR", bytes(13)), (b"tEXt", b"prompt\0{}"), (b"IEND", b""))
)
JPEG = b"\xff\xd8" + b"\xff\xff\xe1\0\x08Exif\0\0" + b"\xff\xda\0\x03x" + b"pixels"
GIF = (
    b"GIF89a" + struct.pack("<HHBBB", 4, 3, 0x80, 0, 0) + bytes(6)
    + b"!\xfe\x02hi\0" + b"," + struct.pack("<HHHHB", 1, 1, 3, 2, 0) + b"\x02\x01a\x01b\0" + b";"
)  # fmt: skip
WEBP_BODY = b"WEBP" + b"VP8 " + struct.pack("<I", 3) + b"abc\0" + b"EXIF" + struct.pack("<I", 2) + b"II"
WEBP = b"RIFF" + struct.pack("<I", len(WEBP_BODY)) + WEBP_BODY
MP4 = struct.pack(">I4s", 12, b"ftyp") + b"isom" + struct.pack(">I4sQ", 1, b"moov", 20) + b"abcd"


def png_of(data: bytes) -> Iterator[object]:
    return png.read_chunks(io.BytesIO(data))


def jpeg_of(data: bytes) -> Iterator[object]:
    return jpeg.read_segments(io.BytesIO(data))


def gif_of(data: bytes) -> Iterator[object]:
    file = io.BytesIO(data)
    assert gif.read_screen(file) == (4, 3)
    for block in gif.read_blocks(file):
        yield block.label, block.right, block.bottom, list(block.sub_blocks)


def mp4_of(data: bytes) -> Iterator[object]:
    for box in boxes.read_boxes(io.BytesIO(data), 0, len(data)):
        yield box.kind, data[box.content : box.end]


WHOLE: dict[str, tuple[Callable[[bytes], Iterator[object]], bytes, list[object]]] = {
    "png": (png_of, PNG, [(b"IHDR", 13), (b"tEXt", 9), (b"IEND", 0)]),
    "jpeg": (jpeg_of, JPEG, [(jpeg.APP1, b"Exif\0\0"), (jpeg.SOS, b"x")]),
    "gif": (gif_of, GIF, [(b"\xfe", 0, 0, [b"hi"]), (b"", 4, 3, [b"a", b"b"])]),
    "webp": (riff.read_chunks, WEBP, [(b"VP8 ", b"abc"), (b"EXIF", b"II")]),
    "mp4": (mp4_of, MP4, [(b"ftyp", b"isom"), (b"moov", b"abcd")]),
}


@pytest.mark.parametrize("kind", WHOLE)
def test_every_part_of_a_whole_file_is_read(kind: str) -> None:
    read, data, parts = WHOLE[kind]
    assert list(read(data)) == parts


@pytest.mark.parametrize("kind", ["png", "jpeg", "gif", "webp", "mp4"])
def test_what_stands_before_a_cut_is_read_and_then_the_file_is_broken(kind: str) -> None:
    read, data, parts = WHOLE[kind]
    cut = data[:-9] if kind in ("png", "jpeg") else data[:-2]
    found = []
    with pytest.raises((png.BrokenPng, jpeg.BrokenJpeg, gif.BrokenGif, riff.BrokenRiff, boxes.BrokenBoxes)):
        for part in read(cut):
            found.append(part)
    assert found == parts[: len(found)]
    assert len(found) == len(parts) - 1


def test_sub_blocks_that_are_left_are_skipped() -> None:
    file = io.BytesIO(GIF)
    gif.read_screen(file)
    assert [block.is_image for block in gif.read_blocks(file)] == [False, True]
