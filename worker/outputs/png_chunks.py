"""Metadata chunks of a PNG file, removed or added, the image data unchanged.

Format: PNG specification, third edition, section 5.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from darkroom.worker.media.containers.png import CHECKSUM_BYTES, SIGNATURE, TEXT_CHUNKS, BrokenPng, read_chunks

METADATA_CHUNKS = TEXT_CHUNKS | {b"eXIf", b"tIME", b"comf"}  # `comf`: in ComfyUI's animated images
MAX_KEY_BYTES = 79
MAX_TEXT_BYTES = 16 << 20  # a longer text is not read
COPY_BYTES = 256 * 1024


def texts_in_png(path: Path) -> list[str]:
    """Return the key of every text in the file, and the type of every other metadata chunk."""
    return [key for key, _ in contents_of_png(path)]


def contents_of_png(path: Path) -> list[tuple[str, str | None]]:
    """Return the metadata of a file.

    This is the key and the text of every text chunk (None for a text that is compressed, not UTF-8 or too long), and
    the type of every other metadata chunk.
    """
    with path.open("rb") as file:
        texts: list[tuple[str, str | None]] = []
        for kind, size_bytes in read_chunks(file):
            if kind in TEXT_CHUNKS:
                key, text = _text_in(kind, file.read(min(size_bytes, MAX_TEXT_BYTES)))
                texts.append((key, text if size_bytes <= MAX_TEXT_BYTES else None))
            elif kind in METADATA_CHUNKS:
                texts.append((kind.decode(), None))
        return texts


def _text_in(kind: bytes, content: bytes) -> tuple[str, str | None]:
    key, _, rest = content.partition(b"\0")
    name = key[: MAX_KEY_BYTES + 1].decode("latin-1")
    if kind == b"tEXt":
        return name, rest.decode("latin-1")
    if kind == b"iTXt" and rest[:1] == b"\0":  # uncompressed: after a flag, a method, a language and a translated key
        with suppress(UnicodeDecodeError, IndexError):
            return name, rest[2:].split(b"\0", 2)[2].decode()
    return name, None


def rewrite_png(source: Path, target: Path, *, drops: bool, texts: Mapping[str, str]) -> None:
    """Copy a file without its metadata (if `drops`) and with `texts` added. Raises BrokenPng."""
    dropped: Collection[bytes] = METADATA_CHUNKS if drops else ()
    with source.open("rb") as file, target.open("wb") as out:
        out.write(SIGNATURE)
        for kind, size_bytes in read_chunks(file):
            if kind not in dropped:
                out.write(struct.pack(">I4s", size_bytes, kind))
                _copy(file, out, size_bytes + CHECKSUM_BYTES)
            if kind == b"IHDR":
                for key, text in texts.items():
                    out.write(_text_chunk(key, text))


def _text_chunk(key: str, text: str) -> bytes:
    try:
        kind, content = b"tEXt", key.encode("latin-1")[:MAX_KEY_BYTES] + b"\0" + text.encode("latin-1")
    except UnicodeEncodeError:
        plain_key = key.encode("latin-1", errors="replace")[:MAX_KEY_BYTES]
        kind, content = b"iTXt", plain_key + b"\0\0\0\0\0" + text.encode(errors="replace")
    return struct.pack(">I4s", len(content), kind) + content + struct.pack(">I", zlib.crc32(kind + content))


def _copy(file: BinaryIO, out: BinaryIO, size_bytes: int) -> None:
    left = size_bytes
    while left:
        block = file.read(min(left, COPY_BYTES))
        if not block:
            raise BrokenPng("ends within a chunk")
        out.write(block)
        left -= len(block)
