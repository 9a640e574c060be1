"""Removal of generation metadata from copies of files other than PNG, JPEG, WebP, SVG and plain audio.

ComfyUI and its packs write the prompt into a GIF's comment, the header of a latent or checkpoint, the tags of a video,
or the description of a mesh. Each is located by the container's structure and overwritten with that container's own
padding. No offset moves and nothing is encoded again; only a GIF's comment is cut out. TIFF and AVIF are unchanged.

Formats: GIF89a; safetensors; binary glTF 2.0; ISO/IEC 14496-12 (MP4, MOV, M4A); RFC 8794 and RFC 9559 (WebM, Matroska).
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from darkroom.worker.media.containers.boxes import BrokenBoxes, read_boxes
from darkroom.worker.media.containers.gif import APPLICATION, COMMENT, BrokenGif, read_blocks, read_screen
from darkroom.worker.media.containers.gltf import CONTENT_START, BrokenGltf, read_description
from darkroom.worker.media.kinds import HEAD_BYTES, kind_of

COPY_BYTES = 1024 * 1024
MAX_HEADER_BYTES = 32 << 20  # parsed at once
MAX_BOX_DEPTH = 8
UNTOUCHED_TYPES = frozenset({"image/tiff", "image/avif"})
KEPT_OF_SAFETENSORS = ("format", "modelspec.")  # describe the model, not how it was made
METADATA_BOXES = frozenset({b"udta", b"meta", b"uuid"})
BOXES_WITH_BOXES = frozenset({b"moov", b"trak"})
EBML_SEGMENT, EBML_INFO, EBML_TAGS = 0x18538067, 0x1549A966, 0x1254C367
EBML_CRC, EBML_TITLE = 0xBF, 0x7BA9  # within Info
EBML_VOID = b"\xec"


class BrokenContainer(ValueError):
    """A file whose structure does not match its format."""


@dataclass(frozen=True, slots=True)
class Edit:
    """A replacement of the bytes from `start` to `end` by `filling`, padded with zeros to the same length."""

    start: int
    end: int
    filling: bytes
    num_zeros: int = 0


def strip_metadata(source: Path, target: Path) -> bool:
    """Copy a file to `target` without its metadata.

    Returns False if the file has no metadata or its format is not supported. Raises BrokenContainer.
    """
    with source.open("rb") as file:
        finder = _finder_of(file.read(HEAD_BYTES))
        if finder is None:
            return False
        try:
            edits = list(finder(file, os.fstat(file.fileno()).st_size))
        except (BrokenGif, BrokenBoxes, BrokenGltf) as error:
            raise BrokenContainer(str(error)) from None
        except (struct.error, IndexError) as error:
            raise BrokenContainer(f"ends too early ({error})") from None
        except RecursionError:
            raise BrokenContainer("has a header that is nested too deeply") from None
        if not edits:
            return False
        file.seek(0)
        target.parent.mkdir(mode=0o700, exist_ok=True)
        with target.open("wb") as out:
            for edit in edits:
                _copy_until(file, out, edit.start)
                out.write(edit.filling)
                _write_zeros(out, edit.num_zeros)
                file.seek(edit.end)
            _copy_until(file, out, None)
    return True


def is_stripped(source: Path) -> bool:
    """Return True for a file of a format whose metadata `strip_metadata` removes."""
    with source.open("rb") as file:
        return _finder_of(file.read(HEAD_BYTES)) is not None


def _finder_of(head: bytes) -> Callable[[BinaryIO, int], Iterator[Edit]] | None:
    kind = kind_of(head)
    if kind is None:
        return None
    if head[4:8] == b"ftyp":
        return None if kind.is_image else _in_boxes
    return _FINDERS.get(kind.extension)


def _in_gif(file: BinaryIO, size_bytes: int) -> Iterator[Edit]:
    read_screen(file)
    for block in read_blocks(file):
        first = next(block.sub_blocks, b"")
        for _ in block.sub_blocks:
            pass
        if block.label == COMMENT or (block.label == APPLICATION and first.startswith(b"XMP Data")):
            yield Edit(block.start, file.tell(), b"")


def _in_safetensors(file: BinaryIO, size_bytes: int) -> Iterator[Edit]:
    file.seek(0)
    (length,) = struct.unpack("<Q", file.read(8))
    if length > min(size_bytes, MAX_HEADER_BYTES):
        raise BrokenContainer(f"has a header of {length} bytes; expected at most {min(size_bytes, MAX_HEADER_BYTES)}")
    try:
        header = json.loads(file.read(length))
    except ValueError:
        raise BrokenContainer("has a header that is not JSON") from None
    metadata = header.get("__metadata__") if isinstance(header, Mapping) else None
    kept = {key: text for key, text in (metadata or {}).items() if key.startswith(KEPT_OF_SAFETENSORS)}
    if kept == (metadata or {}):
        return
    plain = {key: value for key, value in header.items() if key != "__metadata__"}
    rest = {"__metadata__": kept} if kept else {}
    written = json.dumps(rest | plain, ensure_ascii=False, separators=(",", ":")).encode()
    if len(written) > length:
        raise BrokenContainer("has a header that grows when it is written again")
    yield Edit(8, 8 + length, written.ljust(length))


def _in_gltf(file: BinaryIO, size_bytes: int) -> Iterator[Edit]:
    text = read_description(file, min(size_bytes, MAX_HEADER_BYTES))
    try:
        described = json.loads(text)
    except ValueError:
        raise BrokenContainer("has a description that is not JSON") from None
    asset = described.get("asset") if isinstance(described, Mapping) else None
    if not isinstance(asset, Mapping) or not asset.get("extras"):
        return
    plain = {**described, "asset": {key: value for key, value in asset.items() if key != "extras"}}
    written = json.dumps(plain, ensure_ascii=False, separators=(",", ":")).encode()
    if len(written) > len(text):
        raise BrokenContainer("has a description that grows when it is written again")
    yield Edit(CONTENT_START, CONTENT_START + len(text), written.ljust(len(text)))


def _in_boxes(file: BinaryIO, size_bytes: int) -> Iterator[Edit]:
    yield from _boxes_between(file, 0, size_bytes)


def _boxes_between(file: BinaryIO, start: int, end: int, depth: int = 0) -> Iterator[Edit]:
    if depth > MAX_BOX_DEPTH:
        raise BrokenContainer(f"has boxes nested more than {MAX_BOX_DEPTH} deep")
    for box in read_boxes(file, start, end):
        if box.kind in METADATA_BOXES:
            yield Edit(box.start + 4, box.start + 8, b"free")
            yield Edit(box.content, box.end, b"", box.end - box.content)
        elif box.kind in BOXES_WITH_BOXES:
            yield from _boxes_between(file, box.content, box.end, depth + 1)


def _in_matroska(file: BinaryIO, size_bytes: int) -> Iterator[Edit]:
    place, end = 0, size_bytes
    while place < end:
        file.seek(place)
        element, size = _number(file, keeps_marker=True), _number(file)
        content = file.tell()
        if element == EBML_SEGMENT:
            place = content  # descend into its children
            continue
        if size is None:
            raise BrokenContainer("has parts of unknown length")
        if element == EBML_TAGS:
            yield Edit(place, content + size, _void(content + size - place))
        elif element == EBML_INFO:
            yield from _in_info(file, content, min(content + size, size_bytes))
        place = content + size


def _in_info(file: BinaryIO, start: int, end: int) -> Iterator[Edit]:
    """Yield the edits of the title and, if there is one, of the checksum that covers it."""
    found: dict[int | None, Edit] = {}
    place = start
    while place < end:
        file.seek(place)
        element, size = _number(file, keeps_marker=True), _number(file)
        if size is None:
            raise BrokenContainer("has parts of unknown length")
        after = file.tell() + size
        found[element] = Edit(place, after, _void(after - place))
        place = after
    if EBML_TITLE in found:
        yield from sorted((found[key] for key in (EBML_CRC, EBML_TITLE) if key in found), key=lambda edit: edit.start)


def _number(file: BinaryIO, *, keeps_marker: bool = False) -> int | None:
    """Read an EBML variable-length integer; None for the reserved value of an unknown size."""
    first = file.read(1)[0]
    if not first:
        raise BrokenContainer("has an invalid EBML variable-length integer")
    width = 9 - first.bit_length()
    rest = file.read(width - 1)
    if len(rest) < width - 1:
        raise BrokenContainer("ends too early")
    value = int.from_bytes(bytes((first,)) + rest, "big")
    if keeps_marker:
        return value
    value &= (1 << 7 * width) - 1
    return None if value == (1 << 7 * width) - 1 else value


def _void(num_bytes: int) -> bytes:
    """Return an EBML Void element of exactly this many bytes (at least 2)."""
    if num_bytes < 9:
        return EBML_VOID + bytes((0x80 | num_bytes - 2,)) + bytes(num_bytes - 2)
    return EBML_VOID + (1 << 56 | num_bytes - 9).to_bytes(8, "big") + bytes(num_bytes - 9)


def _write_zeros(out: BinaryIO, num_zeros: int) -> None:
    while num_zeros > 0:
        block = bytes(min(num_zeros, COPY_BYTES))
        out.write(block)
        num_zeros -= len(block)


def _copy_until(file: BinaryIO, out: BinaryIO, end: int | None) -> None:
    while True:
        room = COPY_BYTES if end is None else min(COPY_BYTES, end - file.tell())
        block = file.read(room) if room > 0 else b""
        if not block:
            return
        out.write(block)


_FINDERS: Mapping[str, Callable[[BinaryIO, int], Iterator[Edit]]] = {
    "gif": _in_gif,
    "latent": _in_safetensors,
    "glb": _in_gltf,
    "webm": _in_matroska,
    "mkv": _in_matroska,
}
