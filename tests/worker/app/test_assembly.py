"""Files that the start leaves behind on disk survive a crash in the middle."""

from __future__ import annotations

from pathlib import Path

import pytest

from darkroom.worker.app.assembly import Front
from darkroom.worker.app.link_key import LINK_KEY_BYTES
from tests.worker.running_front import settings_for


@pytest.mark.parametrize("found", [b"", b"cut off"])
async def test_a_link_key_that_a_crash_cut_off_is_made_anew_and_then_kept(tmp_path: Path, found: bytes) -> None:
    key = tmp_path / "keys" / "links"
    key.parent.mkdir()
    key.write_bytes(found)
    Front(settings_for(tmp_path, "http://127.0.0.1:9"), lambda code: None)
    made = key.read_bytes()
    assert len(made) == LINK_KEY_BYTES
    Front(settings_for(tmp_path, "http://127.0.0.1:9"), lambda code: None)
    assert key.read_bytes() == made
