"""Workflows in files of every kind, whole and cut."""

from __future__ import annotations

import base64
import json
import struct
import zlib

import pytest

from darkroom.worker.errors import RequestRejected
from darkroom.worker.guard.json_scan import FoundJson
from darkroom.worker.prompts.workflows.media import MAX_TEXT_BYTES, NoWorkflow, find_encoded_workflow, find_workflow
from darkroom.worker.settings.listener import JsonLimits

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


def webp(exif_block: bytes | None = None) -> bytes:
    chunk = exif() if exif_block is None else exif_block
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


DEEP = ('{"prompt": ' + "[" * 200 + "]" * 200 + "}").encode()
LIMITS = JsonLimits(max_elements=1000)


def unpacks_to(text: bytes) -> bytes:
    """A PNG with a compressed prompt."""
    chunk = b"prompt\0\0" + zlib.compress(text)
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I4s", len(chunk), b"zTXt") + chunk + bytes(4)


def packed(text: bytes) -> dict[str, bytes]:
    """A file of each kind whose prompt is a text."""
    named = {"prompt": text.decode()}
    with_comment = struct.pack("<I", 0) + struct.pack("<II", 1, len(text) + 7) + b"prompt=" + text
    tiff = b"II*\0prompt:" + text + b"\0"
    keys = bytes(4) + struct.pack(">I", 1) + box(b"mdta", b"prompt")
    listed = box(struct.pack(">I", 1), box(b"data", bytes(8) + text))
    meta = box(b"meta", bytes(4) + box(b"keys", keys) + box(b"ilst", listed))
    gltf = json.dumps({"asset": {"extras": named}}).encode()
    return {
        "json": text,
        "png": unpacks_to(text),
        "webp": webp(tiff),
        "jpeg": b"\xff\xd8\xff\xe1" + struct.pack(">H", len(tiff) + 8) + b"Exif\0\0" + tiff + b"\xff\xda",
        "flac": b"fLaC" + struct.pack(">I", (1 << 31) | (4 << 24) | len(with_comment)) + with_comment,
        "mp4": box(b"ftyp", b"isom") + box(b"moov", box(b"udta", meta)),
        "glb": b"glTF" + bytes(8) + struct.pack("<I", len(gltf)) + b"JSON" + gltf,
    }


@pytest.mark.parametrize("kind", packed(b"{}"))
@pytest.mark.parametrize(("text", "problem"), [(DEEP, "json_too_deep"), (b"{%s}" % b'"a":1,' * 2000, "json_too_large")])
def test_what_a_file_holds_has_the_limits_of_a_body(kind: str, text: bytes, problem: str) -> None:
    with pytest.raises(RequestRejected) as refused:
        find_workflow(packed(text)[kind], FoundJson(LIMITS).check)
    (found,) = refused.value.problems
    assert (found.field, found.type) == ("input.workflow_json", problem)


def test_the_files_of_one_request_have_the_limits_of_one_body() -> None:
    text = json.dumps({str(index): {} for index in range(200)}).encode()
    found_json = FoundJson(LIMITS)
    for _ in range(2):
        assert find_workflow(unpacks_to(text), found_json.check)
    with pytest.raises(RequestRejected):
        find_workflow(unpacks_to(text), found_json.check)


def test_a_text_that_unpacks_to_more_than_is_read_is_refused_by_its_size() -> None:
    with pytest.raises(NoWorkflow, match="expected at most"):
        find_workflow(unpacks_to(b'{"1":"' + b" " * (MAX_TEXT_BYTES + 10) + b'"}'))


def test_a_number_of_many_digits_in_a_file_is_no_number() -> None:
    text = b'{"1": {"class_type": "A", "inputs": {"a": %s, "b": %s}}}' % (b"9" * 401, b"9" * 20)
    assert find_workflow(unpacks_to(text))["1"]["inputs"] == {"a": None, "b": 10**20 - 1}  # type: ignore[index]
