"""Workflows in files of every kind, whole and cut."""

from __future__ import annotations

import base64
import json
import struct
import zlib

import pytest

from worker.workflows.media import NoWorkflow, find_encoded_workflow, find_workflow

PROMPT = {"1": {"class_type": "Save", "inputs": {"text": "a “cat”"}}}
PAGE: dict[str, list[int]] = {"nodes": [], "links": []}
TEXTS = {"workflow": json.dumps(PAGE), "prompt": json.dumps(PROMPT, ensure_ascii=False)}


def box(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I4s", len(content) + 8, kind) + content


def png(kind: bytes) -> bytes:
    content = b"\x89PNG\r\n\x1a\n"
    for name, text in TEXTS.items():
        packed = {
            b"tEXt": text.encode(),
            b"zTXt": b"\0" + zlib.compress(text.encode()),
            b"iTXt": b"\0\0\0\0" + text.encode(),
        }[kind]
        chunk = name.encode() + b"\0" + packed
        content += struct.pack(">I4s", len(chunk), kind) + chunk + b"\0\0\0\0"
    return content


def exif() -> bytes:
    return b"II*\0" + b"".join(f"{name}:{text}".encode() + b"\0" for name, text in TEXTS.items())


def webp() -> bytes:
    chunk = exif()
    body = b"WEBP" + b"VP8 " + struct.pack("<I", 3) + b"abc\0" + b"EXIF" + struct.pack("<I", len(chunk)) + chunk
    return b"RIFF" + struct.pack("<I", len(body)) + body


def jpeg() -> bytes:
    segment = b"Exif\0\0" + exif()
    return b"\xff\xd8\xff\xe1" + struct.pack(">H", len(segment) + 2) + segment + b"\xff\xda"


def flac() -> bytes:
    comments = [f"{name}={text}".encode() for name, text in TEXTS.items()]
    block = struct.pack("<I", 0) + struct.pack("<I", len(comments))
    block += b"".join(struct.pack("<I", len(comment)) + comment for comment in comments)
    return b"fLaC" + struct.pack(">I", 34) + bytes(34) + struct.pack(">I", (1 << 31) | (4 << 24) | len(block)) + block


def mp4() -> bytes:
    keys = bytes(4) + struct.pack(">I", len(TEXTS)) + b"".join(box(b"mdta", name.encode()) for name in TEXTS)
    values = (box(b"data", bytes(8) + text.encode()) for text in TEXTS.values())
    listed = b"".join(box(struct.pack(">I", index + 1), value) for index, value in enumerate(values))
    meta = box(b"meta", bytes(4) + box(b"keys", keys) + box(b"ilst", listed))
    return box(b"ftyp", b"isom") + box(b"mdat", bytes(20)) + box(b"moov", box(b"udta", meta))


def glb() -> bytes:
    text = json.dumps({"asset": {"version": "2.0", "extras": TEXTS}}).encode()
    return struct.pack("<4sII", b"glTF", 2, 20 + len(text)) + struct.pack("<I4s", len(text), b"JSON") + text


FILES = {
    "png": png(b"tEXt"),
    "packed png": png(b"zTXt"),
    "international png": png(b"iTXt"),
    "webp": webp(),
    "jpeg": jpeg(),
    "flac": flac(),
    "mp4": mp4(),
    "glb": glb(),
    "json": b"\xef\xbb\xbf " + TEXTS["prompt"].encode(),
}


@pytest.mark.parametrize("name", FILES)
def test_the_prompt_of_a_file_is_preferred_to_its_page(name: str) -> None:
    assert find_workflow(FILES[name]) == PROMPT
    assert find_encoded_workflow("data:image/png;base64," + base64.b64encode(FILES[name]).decode()) == PROMPT


def test_constants_that_json_lacks_are_null() -> None:
    assert find_workflow(b'{"1": {"is_changed": [NaN]}}') == {"1": {"is_changed": [None]}}


@pytest.mark.parametrize("content", [b"", b"text", b"{", b"{}", b"\x89PNG\r\n\x1a\n", FILES["flac"][:60], b"\xff\xd8"])
def test_a_file_without_a_workflow_is_refused(content: bytes) -> None:
    with pytest.raises(NoWorkflow):
        find_workflow(content)


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_cut_anywhere_gives_a_workflow_or_is_refused(name: str) -> None:
    for end in range(0, len(FILES[name]), 7):
        try:
            assert find_workflow(FILES[name][:end])
        except NoWorkflow as error:
            assert str(error)
