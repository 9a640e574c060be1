"""Media files are opened one at a time, and what cannot be opened is named."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import av
import pytest
import torch

from darkroom.engine.media.audio_files import FLAC, MP3, write_audio
from darkroom.engine.media.opened import BadMedia, opened_for_reading

PLAYLISTS = {
    "hls.m3u8": "#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1.0,\nsound.mp3\n#EXT-X-ENDLIST\n",
    "concat.ffconcat": "ffconcat version 1.0\nfile sound.mp3\n",
}


@pytest.mark.parametrize("name", PLAYLISTS)
def test_a_playlist_that_names_other_files_is_refused(tmp_path: Path, name: str) -> None:
    write_audio(tmp_path / "sound.mp3", torch.zeros(2, 44100), 44100, MP3, "128k", {})
    (tmp_path / name).write_text(PLAYLISTS[name])
    with av.open(str(tmp_path / name)) as container:
        assert container.streams.audio  # FFmpeg itself follows it
    with pytest.raises(BadMedia, match="no video and no audio"), opened_for_reading(tmp_path / name):
        pass


def test_a_buffer_is_read_from_its_beginning(tmp_path: Path) -> None:
    write_audio(tmp_path / "a.flac", torch.zeros(2, 4410), 44100, FLAC, "", {})
    buffer = io.BytesIO((tmp_path / "a.flac").read_bytes())
    for _ in range(2):
        with opened_for_reading(buffer) as container:
            assert container.format.name == "flac"


def test_without_the_library_its_name_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(BadMedia, match="PyAV is missing; expected the package av"), opened_for_reading(tmp_path / "a"):
        pass
