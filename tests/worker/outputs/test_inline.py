"""Outputs as base64."""

from __future__ import annotations

import base64
from pathlib import Path

from darkroom.worker.outputs.inline import as_base64


def test_gives_the_content_and_its_type(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(b"content")
    shown = as_base64(path, "image/png", 7)
    assert shown == {"data": base64.b64encode(b"content").decode(), "mimetype": "image/png"}


def test_says_why_there_is_no_content(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(b"content")
    assert as_base64(path, "image/png", 6) == {
        "data": None,
        "mimetype": "image/png",
        "error": "7 bytes are over the limit of 6",
    }
    assert as_base64(tmp_path / "gone", "image/png", 6)["error"] == "the file has expired"
