"""Limits on the videos and audio of a request: seconds, and pixels of all frames."""

from __future__ import annotations

import wave
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from darkroom.worker.inputs.file_checks import check_input
from darkroom.worker.media.kinds import BrokenFile
from darkroom.worker.settings.outputs import InputLimits
from tests.worker.shared_media_processes import media_processes


def audio(path: Path, seconds: float) -> Path:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(bytes(int(seconds * 16_000)))
    return path


def video(path: Path, moments_seconds: list[int]) -> Path:
    """Write frames of 32x16 px that are shown from these moments on."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=1)
        stream.width, stream.height, stream.pix_fmt = 32, 16, "yuv420p"
        stream.codec_context.time_base = Fraction(1)
        for moment in moments_seconds:
            frame = av.VideoFrame.from_ndarray(np.zeros((16, 32, 3), np.uint8), format="rgb24")
            frame.pts, frame.time_base = moment, Fraction(1)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


def test_audio_has_at_most_so_many_seconds(tmp_path: Path) -> None:
    path = audio(tmp_path / "a.wav", 3)
    assert check_input(path, "file", InputLimits(max_seconds=3), media_processes()).extension == "wav"
    with pytest.raises(BrokenFile, match=r"has 3 seconds; expected at most 2.5 \(INPUT_MAX_SECONDS\)"):
        check_input(path, "file", InputLimits(max_seconds=2.5), media_processes())


def test_audio_has_at_most_so_many_samples_however_few_seconds_they_are(tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    with wave.open(str(path), "wb") as file:
        file.setnchannels(8)
        file.setsampwidth(1)
        file.setframerate(655_350)
        file.writeframes(bytes(8 * 655_350))
    said = r"has 5242800 samples of audio \(1 s of 8 channels at 655350 Hz\); expected at most 384000, 384000 for each"
    with pytest.raises(BrokenFile, match=said):
        check_input(path, "file", InputLimits(max_seconds=1), media_processes())


def test_a_video_that_hardly_ever_ends_is_refused_however_few_frames_it_has(tmp_path: Path) -> None:
    path = video(tmp_path / "a.mkv", [0, 1, 2_000_000])
    with pytest.raises(BrokenFile, match="seconds; expected at most 3600"):
        check_input(path, "file", InputLimits(), media_processes())


def test_a_damaged_video_is_left_to_the_engine_s_check(tmp_path: Path) -> None:
    path = tmp_path / "a.mp4"
    path.write_bytes(b"\0\0\0\x18ftypisom" + bytes(40))
    assert check_input(path, "file", InputLimits(), media_processes()).extension == "mp4"
