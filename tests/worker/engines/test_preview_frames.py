"""Binary messages with previews: both forms, and what is none."""

from __future__ import annotations

import json
import struct

import pytest

from darkroom.worker.engines.preview_frames import MAX_FRAME_BYTES, PreviewFrame, read_frame


def named(image: bytes = b"jpeg", **about: object) -> bytes:
    metadata = {"prompt_id": "job-1", "node_id": "3", "image_type": "image/jpeg", **about}
    encoded = json.dumps(metadata).encode()
    return struct.pack(">II", 4, len(encoded)) + encoded + image


def test_a_frame_with_metadata_names_its_prompt_and_node() -> None:
    assert read_frame(named()) == PreviewFrame("image/jpeg", b"jpeg", "job-1", "3")


def test_an_older_frame_has_its_encoding_alone() -> None:
    assert read_frame(struct.pack(">II", 1, 2) + b"png") == PreviewFrame("image/png", b"png")


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\0\0\0",
        struct.pack(">II", 3, 1) + b"3a text",
        struct.pack(">II", 1, 9) + b"unknown encoding",
        struct.pack(">II", 4, 2**31) + b"{",
        struct.pack(">II", 4, 2) + b"[]",
        named(image_type="text/html"),
        named(b"x" * MAX_FRAME_BYTES),
    ],
)
def test_what_is_no_image_is_passed_over(message: bytes) -> None:
    assert read_frame(message) is None
