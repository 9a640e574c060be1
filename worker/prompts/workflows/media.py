"""Workflows that ComfyUI writes into the files that it saves: PNG, WebP, JPEG, FLAC, MP4, GLB. Pure.

Formats: PNG third edition section 11.3.3, RIFF, Exif in JPEG's APP1, FLAC's Vorbis comments (RFC 9639), the `keys` and
`ilst` atoms of QuickTime metadata, and `asset.extras` of binary glTF 2.0. The texts are named `prompt` (API format) and
`workflow` (the page's).
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
import struct
import zlib
from collections.abc import Callable, Iterator
from io import BytesIO
from typing import BinaryIO, Final

from darkroom.worker.json.values import JsonObject
from darkroom.worker.media.containers.boxes import Box, BrokenBoxes, read_boxes
from darkroom.worker.media.containers.gltf import BrokenGltf, read_description
from darkroom.worker.media.containers.jpeg import APP1, EXIF_PREFIX, SOI, BrokenJpeg, read_segments
from darkroom.worker.media.containers.png import SIGNATURE, TEXT_CHUNKS, BrokenPng, read_chunks
from darkroom.worker.media.containers.riff import BrokenRiff, is_webp
from darkroom.worker.media.containers.riff import read_chunks as read_riff_chunks

NAMES: Final = ("prompt", "workflow")
MAX_DIGITS: Final = 400
MAX_TEXT_BYTES: Final = 8 * 1024 * 1024
BOX_PATHS: Final = frozenset({b"moov", b"udta"})


CheckJson = Callable[[bytes], None]
"""Check of a JSON text before it is parsed; it raises for one that is too large."""


class NoWorkflow(ValueError):
    """File that carries no workflow."""


def accept(text: bytes) -> None:
    """Accept any text, as for files of one's own."""


def find_workflow(content: bytes, check: CheckJson = accept) -> JsonObject:
    """Return the workflow in a file: its prompt in API format, or else the page's. Raises NoWorkflow.

    A file of JSON is the workflow itself. `check` is called with each JSON text before it is parsed, and may raise.
    """
    plain = content.removeprefix(b"\xef\xbb\xbf").lstrip()
    if plain[:1] == b"{":
        return _parsed(plain, check) or _none("is not valid JSON")
    found = find_metadata(content, check)
    for name in NAMES:
        if name in found:
            return found[name]
    return _none("carries no workflow; expected JSON, or PNG, WebP, JPEG, FLAC, MP4 or GLB with ComfyUI's metadata")


def find_metadata(content: bytes, check: CheckJson = accept) -> dict[str, JsonObject]:
    """Return the `prompt` and the `workflow` that a file carries.

    Raises NoWorkflow for a broken file, and what `check` raises.
    """
    found: dict[str, JsonObject] = {}
    try:
        for name, text in _texts_in(content, check):
            key = name.lower()
            value = _parsed(text, check) if key in NAMES and key not in found else None
            if value:
                found[key] = value
    except (BrokenPng, BrokenJpeg, BrokenRiff, BrokenBoxes):
        pass  # the texts before the damage count
    except (BrokenGltf, struct.error, IndexError, zlib.error):
        raise NoWorkflow("is a broken file; expected JSON, PNG, WebP, JPEG, FLAC, MP4 or GLB") from None
    return found


def find_encoded_workflow(text: str, check: CheckJson = accept) -> JsonObject:
    """Return the workflow in a file that is given as base64 or as a data URI, as `find_workflow` does."""
    encoded = text.partition(",")[2] if text.startswith("data:") else text
    try:
        content = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        raise NoWorkflow("is text; expected a JSON object, or a file with a workflow in base64") from None
    return find_workflow(content, check)


def _none(message: str) -> JsonObject:
    raise NoWorkflow(message)


def _parsed(text: bytes, check: CheckJson) -> JsonObject | None:
    """Return the JSON object at the start of a text. Constants that JSON lacks, which ComfyUI writes, become null."""
    if len(text) > MAX_TEXT_BYTES:
        raise NoWorkflow(f"carries a text of {len(text)} bytes or more; expected at most {MAX_TEXT_BYTES}")
    check(text)
    try:
        decoder = json.JSONDecoder(parse_constant=lambda _name: None, parse_float=_finite, parse_int=_whole)
        value, _end = decoder.raw_decode(text.decode(errors="replace").lstrip())
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _whole(text: str) -> int | None:
    """Return a number, None for one of so many digits that reading and writing it would take long."""
    return int(text) if len(text) <= MAX_DIGITS else None


def _finite(text: str) -> float | None:
    """Return a number, None for one that is too large to be written again."""
    value = float(text)
    return value if math.isfinite(value) else None


def _texts_in(content: bytes, check: CheckJson) -> Iterator[tuple[str, bytes]]:
    file = BytesIO(content)
    if content.startswith(SIGNATURE):
        yield from _texts_in_png(file)
    elif is_webp(content):
        for kind, chunk in read_riff_chunks(content):
            if kind == b"EXIF":
                yield from _texts_in_exif(chunk)
    elif content[:2] == bytes((0xFF, SOI)):
        for marker, segment in read_segments(file):
            if marker == APP1 and segment.startswith(EXIF_PREFIX):
                yield from _texts_in_exif(segment[6:])
    elif content[:4] == b"fLaC":
        yield from _texts_in_flac(content)
    elif content[:4] == b"glTF":
        yield from _texts_in_gltf(file, check)
    elif content[4:8] == b"ftyp":
        yield from _texts_in_mp4(file, len(content))


def _texts_in_png(file: BinaryIO) -> Iterator[tuple[str, bytes]]:
    seen = set[str]()
    for kind, size_bytes in read_chunks(file):
        if kind in TEXT_CHUNKS:
            key, _, rest = file.read(size_bytes).partition(b"\0")
            name = key.decode("latin-1")
            if name in NAMES and name not in seen:
                seen.add(name)
                yield name, _png_text(kind, rest)


def _png_text(kind: bytes, rest: bytes) -> bytes:
    """Return the text of a chunk after its name, in UTF-8."""
    if kind != b"iTXt":
        return _as_utf8(rest if kind == b"tEXt" else _inflated(rest[1:]))
    is_packed, text = rest[0], rest[2:].split(b"\0", 2)[2]
    return _inflated(text) if is_packed else text


def _as_utf8(text: bytes) -> bytes:
    """Return a text that is Latin-1 by the specification, and UTF-8 from many tools, as UTF-8."""
    try:
        text.decode()
    except UnicodeDecodeError:
        return text.decode("latin-1").encode()
    return text


def _inflated(packed: bytes) -> bytes:
    return zlib.decompressobj().decompress(packed, MAX_TEXT_BYTES + 1)


def _texts_in_exif(block: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the texts `name:text`, which ComfyUI writes in tags that have another meaning."""
    for name in NAMES:
        found = re.search(rb"%b:\s{0,8}(?=\{)" % name.encode(), block)
        if found:
            yield name, block[found.end() :].partition(b"\0")[0]


def _texts_in_flac(content: bytes) -> Iterator[tuple[str, bytes]]:
    position, is_last = 4, False
    while not is_last:
        head = struct.unpack_from(">I", content, position)[0]
        is_last, kind, size_bytes = bool(head >> 31), (head >> 24) & 0x7F, head & 0xFFFFFF
        if kind == 4:
            yield from _vorbis_comments(content[position + 4 : position + 4 + size_bytes])
        position += 4 + size_bytes


def _vorbis_comments(block: bytes) -> Iterator[tuple[str, bytes]]:
    position = 4 + struct.unpack_from("<I", block)[0]
    count = struct.unpack_from("<I", block, position)[0]
    position += 4
    for _ in range(count):
        size_bytes = struct.unpack_from("<I", block, position)[0]
        name, _, text = block[position + 4 : position + 4 + size_bytes].partition(b"=")
        yield name.decode("latin-1"), text
        position += 4 + size_bytes


def _texts_in_gltf(file: BinaryIO, check: CheckJson) -> Iterator[tuple[str, bytes]]:
    asset = (_parsed(read_description(file, MAX_TEXT_BYTES + 1), check) or {}).get("asset")
    extras = asset.get("extras") if isinstance(asset, dict) else None
    for name, text in (extras if isinstance(extras, dict) else {}).items():
        if isinstance(text, str):
            yield name, text.encode()


def _texts_in_mp4(file: BinaryIO, size_bytes: int) -> Iterator[tuple[str, bytes]]:
    for meta in _metadata_boxes(file, 0, size_bytes, BOX_PATHS):
        names: list[str] = []
        for box in read_boxes(file, meta.content + 4, meta.end):
            if box.kind == b"keys":
                names = [_content(file, key).decode("latin-1") for key in read_boxes(file, box.content + 8, box.end)]
            elif box.kind == b"ilst":
                yield from _listed(file, box, names)


def _listed(file: BinaryIO, listing: Box, names: list[str]) -> Iterator[tuple[str, bytes]]:
    for item in read_boxes(file, listing.content, listing.end):
        index = int.from_bytes(item.kind) - 1
        if 0 <= index < len(names):
            for box in read_boxes(file, item.content, item.end):
                if box.kind == b"data":
                    yield names[index].rpartition(".")[2], _content(file, box)[8:]


def _metadata_boxes(file: BinaryIO, start: int, end: int, kinds: frozenset[bytes]) -> Iterator[Box]:
    """Yield each `meta` box that lies in boxes of the given kinds, each at most once on the way."""
    for box in read_boxes(file, start, end):
        if box.kind == b"meta":
            yield box
        elif box.kind in kinds:
            yield from _metadata_boxes(file, box.content, box.end, kinds - {box.kind})


def _content(file: BinaryIO, box: Box) -> bytes:
    file.seek(box.content)
    return file.read(box.end - box.content)
